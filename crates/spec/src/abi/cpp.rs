//! The declared structs in C++: the generated headers of the kernels.

use super::declared::{Declared, Member};
use super::{
    BLOCK_NAMES, BLOCKS, GRADIENTS_ADD, GRADIENTS_F32, LISTED_BOX_ROWS, PREPASS_ROWS, RAGGED,
    RAGGED_KEYS, READ_AHEAD, RECORD_MAGIC, WINDOW_UNLIMITED, cpp_backward, cpp_backward_bias,
    cpp_backward_blocks, cpp_backward_dropout, cpp_backward_tma, cpp_backward_tma_dropout,
    cpp_blocks, cpp_boxes, cpp_dropout, cpp_numbers, cpp_operations, cpp_runs, cpp_structs,
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

/// Hashes of the blocks among declared structs.
fn cpp_hashes(structs: &str) -> String {
    let blocks = BLOCK_NAMES.iter().zip(BLOCKS);
    let declared = blocks.filter(|(name, _)| structs.contains(&format!(" {name} {{\n")));
    let hash = |(name, (hash, _)): (&&str, &(u64, usize))| {
        format!("template <> constexpr unsigned long long BLOCK_HASH<{name}> = {hash:#018x};\n")
    };
    declared.map(hash).collect()
}

/// Structs, and hashes of the blocks among them.
fn with_hashes(structs: &str) -> String {
    format!("{structs}\n{}", cpp_hashes(structs))
}

/// The headers of `kernels/generated/` with the parameter blocks, by name: each depends on those that it includes alone, so that an image
/// changes only with the blocks that it takes.
///
/// They assert the size of every struct. Members have no gaps between them (`Pod` allows none), so that a struct of the right size has
/// every member where Rust has it.
pub fn cpp_headers() -> [(&'static str, String); 13] {
    let lists = |feature: Features, name| {
        let feature = feature.bits();
        format!("enum : unsigned {{ FEATURE_{name} = {feature} }};\n")
    };
    let lists_of_blocks = lists(Features::BLOCKS, "BLOCKS")
        + &format!("enum : int {{ LISTED_BOX_ROWS = {LISTED_BOX_ROWS} }};\n\n");
    let numbers_of_backward = format!(
        "enum : int {{ PREPASS_ROWS = {PREPASS_ROWS}, GRADIENTS_F32 = {GRADIENTS_F32}, GRADIENTS_ADD = {GRADIENTS_ADD} }};\n{}\n",
        capability::cpp_roles_of_backward()
    );
    let role_of_runs = Role::KeyRuns.number();
    let role_of_bias = Role::BiasGradients.number();
    [
        header(
            "abi",
            true,
            &[],
            &[
                &cpp_base(),
                &cpp_structs(),
                "\n// Hash of a block's declaration, by which the host recognizes images that were compiled for another; 0 for other structs.\n\
             template <class Block> constexpr unsigned long long BLOCK_HASH = 0;\n",
                &cpp_hashes(&cpp_structs()),
            ],
        ),
        header(
            "abi_ops",
            false,
            &["abi"],
            &[&with_hashes(&cpp_operations())],
        ),
        header(
            "abi_backward",
            true,
            &["abi"],
            &[&numbers_of_backward, &with_hashes(&cpp_backward())],
        ),
        header(
            "abi_backward_tma",
            false,
            &["abi_backward"],
            &[&with_hashes(&cpp_backward_tma())],
        ),
        header(
            "abi_dropout",
            true,
            &["abi"],
            &[
                &lists(Features::DROPOUT, "DROPOUT"),
                "\n",
                &of_variant("DROPOUT", &cpp_dropout()),
            ],
        ),
        header(
            "abi_blocks",
            true,
            &["abi"],
            &[&lists_of_blocks, &of_variant("BLOCKS", &cpp_blocks())],
        ),
        header(
            "abi_boxes",
            false,
            &["abi"],
            &[
                &cpp_boxes(),
                "
#if defined(WARPTILE_VARIANT_BIAS) || defined(WARPTILE_VARIANT_MASK)
",
                &cpp_hashes(&cpp_boxes()),
                "#endif
",
            ],
        ),
        header(
            "abi_bias",
            true,
            &["abi"],
            &[&lists(Features::BIAS_F32, "BIAS_F32")],
        ),
        header(
            "abi_backward_dropout",
            false,
            &["abi_backward", "abi_dropout"],
            &[&of_variant("DROPOUT", &cpp_backward_dropout())],
        ),
        header(
            "abi_backward_blocks",
            false,
            &["abi_backward", "abi_blocks"],
            &[&of_variant("BLOCKS", &cpp_backward_blocks())],
        ),
        header(
            "abi_backward_bias",
            true,
            &["abi_backward_dropout"],
            &[
                &format!("enum : unsigned {{ ROLE_BIAS_GRADIENTS = {role_of_bias} }};\n\n"),
                &with_hashes(&cpp_backward_bias()),
            ],
        ),
        header(
            "abi_backward_tma_dropout",
            false,
            &["abi_backward_tma", "abi_dropout"],
            &[&of_variant("DROPOUT", &cpp_backward_tma_dropout())],
        ),
        header(
            "abi_runs",
            true,
            &["abi"],
            &[
                &format!("enum : unsigned {{ ROLE_KEY_RUNS = {role_of_runs} }};\n\n"),
                &with_hashes(&cpp_runs()),
            ],
        ),
    ]
}

/// A header, which is `kernels/generated/base/{name}.cuh`. `of_capabilities`: it has numbers of capability.rs, too.
fn header(
    name: &'static str,
    of_capabilities: bool,
    includes: &[&str],
    parts: &[&str],
) -> (&'static str, String) {
    let and = if of_capabilities {
        " and capability.rs"
    } else {
        ""
    };
    let includes = includes
        .iter()
        .map(|name| format!("#include \"base/{name}.cuh\"\n"));
    let includes = includes.collect::<String>();
    let gap = if includes.is_empty() { "" } else { "\n" };
    let text = format!(
        "// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs{and}, where to change it.\n\
         #pragma once\n\n{includes}{gap}namespace warptile {{\n\n{}\n}} // namespace warptile\n",
        parts.concat()
    );
    (name, text)
}

/// As [`with_hashes`], for the images of a variant alone, since hashes would be data in others.
fn of_variant(name: &str, structs: &str) -> String {
    let hashes = cpp_hashes(structs);
    format!("{structs}\n#ifdef WARPTILE_VARIANT_{name}\n{hashes}#endif\n")
}

/// Numbers that the host uses, too.
fn cpp_base() -> String {
    [
        &format!("constexpr int WINDOW_UNLIMITED = {WINDOW_UNLIMITED};\n"),
        &format!("constexpr int RAGGED = {RAGGED}, RAGGED_KEYS = {RAGGED_KEYS}, READ_AHEAD = {READ_AHEAD};\n"),
        &format!("constexpr unsigned RECORD_MAGIC = {RECORD_MAGIC:#x};\n\n"),
        "// Numbers that the host uses too. Enumerators, because NVRTC emits a variable for each `constexpr` of a namespace.\n\
         namespace abi {\nenum : int {\n",
        &cpp_numbers(),
        "};\n} // namespace abi\n\n",
        &capability::cpp_constants(),
        "\n",
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_declares_every_struct_with_its_members() {
        let header = cpp_headers().map(|(_, text)| text).concat();
        for line in [
            "    BOX_COLUMNS = 64, // Columns of a tensor map's box: one swizzled row of 128 bytes.",
            "struct Tensor {",
            "    void* address; // Address of batch entry 0, row 0, head 0.",
            "struct alignas(64) ForwardTma {",
            "    unsigned long long opaque[16]; // Its 128 bytes.",
            "static_assert(sizeof(Forward) == 432);",
            "    int kv_heads; // Key/value heads; divides `heads`.",
            "    Tensor outs[32]; // The outputs to be merged.",
        ] {
            assert!(
                header.lines().any(|found| found == line),
                "{line}\n{header}"
            );
        }
        for (feature, name, _) in Features::TABLE {
            let bit = feature.bits().trailing_zeros();
            let forms = [format!("1u << {bit};"), format!("{} }};", 1 << bit)];
            let is_declared = |form: &String| header.contains(&format!("FEATURE_{name} = {form}"));
            assert!(forms.iter().any(is_declared), "{name}");
        }
        for name in BLOCK_NAMES {
            let hashes = header.matches(&format!("BLOCK_HASH<{name}>")).count();
            assert_eq!(hashes, 1, "{name}");
        }
    }
}
