//! The declared structs in C++: the generated headers of the kernels.

use super::declared::{Block, Declared, Member};
use super::{
    Append, AppendE4m3, Backward, BackwardDropout, BackwardTma, BackwardTmaDropout, Forward,
    ForwardDropout, ForwardE4m3, ForwardTma, ForwardTmaBlocks, ForwardTmaDropout, GRADIENTS_ADD,
    GRADIENTS_F32, KeyRuns, LISTED_BOX_ROWS, Merge, PREPASS_ROWS, Prepass, RAGGED, RAGGED_KEYS,
    READ_AHEAD, RECORD_MAGIC, SinkGradient, WINDOW_UNLIMITED, cpp_backward, cpp_backward_dropout,
    cpp_backward_tma, cpp_backward_tma_dropout, cpp_blocks, cpp_dropout, cpp_numbers,
    cpp_operations, cpp_runs, cpp_structs,
};
use crate::capability::{self, Features, Role};

pub(super) fn cpp_number(name: &str, value: i64, docs: &[&str]) -> String {
    format!("    {name} = {value}, //{}\n", docs.join(""))
}

pub(super) fn cpp_struct<T: Declared>(docs: &[&str], align: Option<usize>) -> String {
    let mut text = String::new();
    for line in docs {
        text += &format!("//{line}\n");
    }
    let align = align.map_or(String::new(), |align| format!("alignas({align}) "));
    text += &format!("struct {align}{} {{\n", T::NAME);
    for member in T::MEMBERS {
        match member.in_place {
            true => {
                let documented = member.parts.iter().zip(member.docs);
                text.extend(documented.map(|(member, docs)| cpp_member(member, docs)));
            }
            false => text += &cpp_member(member, &member.docs.join("")),
        }
    }
    text += &format!(
        "}};\nstatic_assert(sizeof({}) == {});\n",
        T::NAME,
        size_of::<T>()
    );
    text
}

fn cpp_member(member: &Member, docs: &str) -> String {
    let declaration = match member.cpp_type.split_once('[') {
        Some((element, rest)) => format!("{element} {}[{rest}", member.name),
        None => format!("{} {}", member.cpp_type, member.name),
    };
    // Brackets that rustdoc would take for links are quoted in Rust.
    let docs = docs.replace("`[", "[").replace("]`", "]");
    format!("    {declaration}; //{docs}\n")
}

fn cpp_hash<T: Block>() -> String {
    format!(
        "template <> constexpr unsigned long long BLOCK_HASH<{}> = {:#018x};\n",
        T::NAME,
        T::HASH
    )
}

/// The text of `kernels/base/abi.cuh`.
///
/// It asserts the size of every struct. Members have no gaps between them (`Pod` allows none), so that a struct of the right
/// size has every member where Rust has it.
pub fn cpp_header() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.\n\
         #pragma once\n\nnamespace warptile {\n\n",
        &format!("constexpr int WINDOW_UNLIMITED = {WINDOW_UNLIMITED};\n"),
        &format!("constexpr int RAGGED = {RAGGED}, RAGGED_KEYS = {RAGGED_KEYS}, READ_AHEAD = {READ_AHEAD};\n"),
        &format!("constexpr unsigned RECORD_MAGIC = {RECORD_MAGIC:#x};\n\n"),
        "// Numbers that the host uses too. Enumerators, because NVRTC emits a variable for each `constexpr` of a namespace.\n\
         namespace abi {\nenum : int {\n",
        &cpp_numbers(),
        "};\n} // namespace abi\n\n",
        &capability::cpp_constants(),
        "\n",
        &cpp_structs(),
        "\n// Hash of a block's declaration, by which the host recognizes images that were compiled for another; 0 for other structs.\n\
         template <class Block> constexpr unsigned long long BLOCK_HASH = 0;\n",
        &cpp_hash::<Forward>(),
        &cpp_hash::<ForwardTma>(),
        &cpp_hash::<ForwardE4m3>(),
        "\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_ops.cuh`, apart from the other so that forward's images do not depend on it.
pub fn cpp_header_of_operations() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi.cuh\"\n\nnamespace warptile {\n\n",
        &cpp_operations(),
        "\n",
        &cpp_hash::<Merge>(),
        &cpp_hash::<Append>(),
        &cpp_hash::<AppendE4m3>(),
        "\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_backward.cuh`, apart from the others so that no image of other operations depends on it.
pub fn cpp_header_of_backward() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi.cuh\"\n\nnamespace warptile {\n\n",
        &format!("enum : int {{ PREPASS_ROWS = {PREPASS_ROWS}, GRADIENTS_F32 = {GRADIENTS_F32}, GRADIENTS_ADD = {GRADIENTS_ADD} }};\n"),
        &capability::cpp_roles_of_backward(),
        "\n",
        &cpp_backward(),
        "\n",
        &cpp_hash::<Prepass>(),
        &cpp_hash::<Backward>(),
        &cpp_hash::<SinkGradient>(),
        "\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_backward_tma.cuh`, apart from the other so that no image that reads through addresses depends on it.
pub fn cpp_header_of_backward_tma() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi_backward.cuh\"\n\nnamespace warptile {\n\n",
        &cpp_backward_tma(),
        "\n",
        &cpp_hash::<BackwardTma>(),
        "\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_dropout.cuh`. Hashes are for images with dropout alone, since they would be data in others.
pub fn cpp_header_of_dropout() -> String {
    let feature = Features::DROPOUT.bits();
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi.cuh\"\n\nnamespace warptile {\n\n",
        &format!("enum : unsigned {{ FEATURE_DROPOUT = {feature} }};\n\n"),
        &cpp_dropout(),
        "\n#ifdef WARPTILE_VARIANT_DROPOUT\n",
        &cpp_hash::<ForwardDropout>(),
        &cpp_hash::<ForwardTmaDropout>(),
        "#endif\n\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_blocks.cuh`. Hashes are for images with lists of blocks alone.
pub fn cpp_header_of_blocks() -> String {
    let feature = Features::BLOCKS.bits();
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi.cuh\"\n\nnamespace warptile {\n\n",
        &format!("enum : unsigned {{ FEATURE_BLOCKS = {feature} }};\nenum : int {{ LISTED_BOX_ROWS = {LISTED_BOX_ROWS} }};\n\n"),
        &cpp_blocks(),
        "\n#ifdef WARPTILE_VARIANT_BLOCKS\n",
        &cpp_hash::<ForwardTmaBlocks>(),
        "#endif\n\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_runs.cuh`.
pub fn cpp_header_of_runs() -> String {
    let role = Role::KeyRuns.number();
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi.cuh\"\n\nnamespace warptile {\n\n",
        &format!("enum : unsigned {{ ROLE_KEY_RUNS = {role} }};\n\n"),
        &cpp_runs(),
        "\n",
        &cpp_hash::<KeyRuns>(),
        "\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_backward_dropout.cuh`.
pub fn cpp_header_of_backward_dropout() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi_backward.cuh\"\n#include \"base/abi_dropout.cuh\"\n\nnamespace warptile {\n\n",
        &cpp_backward_dropout(),
        "\n#ifdef WARPTILE_VARIANT_DROPOUT\n",
        &cpp_hash::<BackwardDropout>(),
        "#endif\n\n} // namespace warptile\n",
    ]
    .concat()
}

/// The text of `kernels/base/abi_backward_tma_dropout.cuh`.
pub fn cpp_header_of_backward_tma_dropout() -> String {
    [
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.\n\
         #pragma once\n\n#include \"base/abi_backward_tma.cuh\"\n#include \"base/abi_dropout.cuh\"\n\nnamespace warptile {\n\n",
        &cpp_backward_tma_dropout(),
        "\n#ifdef WARPTILE_VARIANT_DROPOUT\n",
        &cpp_hash::<BackwardTmaDropout>(),
        "#endif\n\n} // namespace warptile\n",
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_declares_every_struct_with_its_members() {
        let header = cpp_header() + &cpp_header_of_operations();
        for line in [
            "    BOX_COLUMNS = 64, // Columns of a tensor map's box: one swizzled row of 128 bytes.",
            "struct Tensor {",
            "    void* address; // Address of batch entry 0, row 0, head 0.",
            "struct alignas(64) ForwardTma {",
            "    unsigned long long opaque[16]; // Its 128 bytes.",
            "static_assert(sizeof(Forward) == 432);",
            "    int kv_heads; // Key/value heads; divides `heads`.",
            "constexpr unsigned FEATURE_SINKS = 1u << 2;",
            "    Tensor outs[32]; // The outputs to be merged.",
        ] {
            assert!(
                header.lines().any(|found| found == line),
                "{line}\n{header}"
            );
        }
    }
}
