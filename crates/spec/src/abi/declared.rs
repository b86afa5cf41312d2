//! The description of a struct that its declaration in Rust generates: its members with their offsets and C++ types,
//! and their hash.

use bytemuck::Pod;

/// A member of a part or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name, the same on both sides.
    pub name: &'static str,
    /// Bytes from the start of the struct that declares it.
    pub offset: usize,
    /// Its type in C++.
    pub cpp_type: &'static str,
    /// Members of a member that is a part itself, or of the first element of an array of parts; empty for others.
    pub parts: &'static [Member],
    /// Its documentation, by lines; of a part in place a line for each of its members.
    pub docs: &'static [&'static str],
    /// True if C++ has the members of this part instead of it.
    pub in_place: bool,
}

/// A member with the path to it, such as `scoring.scale`, and its offset in the block.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaf {
    /// Names from the block down, joined by dots.
    pub path: String,
    /// Bytes from the start of the block.
    pub offset: usize,
    /// Its type in C++.
    pub cpp_type: &'static str,
}

/// A struct that both Rust and C++ know.
pub trait Declared: Pod {
    /// Its name in both languages.
    const NAME: &'static str;
    /// Its members, in order.
    const MEMBERS: &'static [Member];
    /// 64-bit FNV-1a over path, C++ type and offset of every leaf: two declarations with one hash are the same to a kernel.
    const HASH: u64 = hash_members(FNV_OFFSET, Self::MEMBERS, None, 0);

    /// The members that are not parts, with each part replaced by its own members. An array of parts stands before the
    /// members of its first element.
    fn leaves() -> Vec<Leaf> {
        let mut leaves = Vec::new();
        collect_leaves(Self::MEMBERS, "", 0, &mut leaves);
        leaves
    }
}

/// A struct that is the only argument of a kernel.
pub trait Block: Declared {}

/// The type a member has in C++, unless its declaration gives one.
pub(super) trait InCpp {
    const TYPE: &'static str;
    const PARTS: &'static [Member] = &[];
}

impl InCpp for i32 {
    const TYPE: &'static str = "int";
}

impl InCpp for u16 {
    const TYPE: &'static str = "unsigned short";
}

impl InCpp for u32 {
    const TYPE: &'static str = "unsigned";
}

impl InCpp for i64 {
    const TYPE: &'static str = "long long";
}

impl InCpp for u64 {
    const TYPE: &'static str = "unsigned long long";
}

impl InCpp for f32 {
    const TYPE: &'static str = "float";
}

/// An array's declaration gives its C++ type, such as `int[6]`.
impl<T: InCpp, const N: usize> InCpp for [T; N] {
    const TYPE: &'static str = "";
    const PARTS: &'static [Member] = T::PARTS;
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(FNV_PRIME);
        index += 1;
    }
    hash
}

/// The names down to a member, as a list on the stack: constant functions have no `String`.
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    name: &'static str,
}

const fn hash_path(hash: u64, path: &Path<'_>) -> u64 {
    match path.parent {
        Some(parent) => hash_bytes(
            hash_bytes(hash_path(hash, parent), b"."),
            path.name.as_bytes(),
        ),
        None => hash_bytes(hash, path.name.as_bytes()),
    }
}

/// Returns true if a type in C++ is an array of others.
const fn is_array(cpp_type: &str) -> bool {
    matches!(cpp_type.as_bytes(), [.., b']'])
}

/// The hashed text of a leaf is `path:type@offset;`, the offset as 8 little-endian bytes.
const fn hash_members(
    mut hash: u64,
    members: &[Member],
    parent: Option<&Path<'_>>,
    base: usize,
) -> u64 {
    let mut index = 0;
    while index < members.len() {
        let member = members[index];
        let path = Path {
            parent,
            name: member.name,
        };
        let offset = base + member.offset;
        if member.in_place {
            hash = hash_members(hash, member.parts, parent, offset);
            index += 1;
            continue;
        }
        if member.parts.is_empty() || is_array(member.cpp_type) {
            hash = hash_bytes(hash_path(hash, &path), b":");
            hash = hash_bytes(hash_bytes(hash, member.cpp_type.as_bytes()), b"@");
            hash = hash_bytes(hash_bytes(hash, &(offset as u64).to_le_bytes()), b";");
        }
        hash = hash_members(hash, member.parts, Some(&path), offset);
        index += 1;
    }
    hash
}

fn collect_leaves(members: &[Member], prefix: &str, base: usize, leaves: &mut Vec<Leaf>) {
    for member in members {
        let path = format!("{prefix}{}", member.name);
        let offset = base + member.offset;
        if member.in_place {
            collect_leaves(member.parts, prefix, offset, leaves);
            continue;
        }
        let inner = format!("{path}.");
        if member.parts.is_empty() || is_array(member.cpp_type) {
            leaves.push(Leaf {
                path,
                offset,
                cpp_type: member.cpp_type,
            });
        }
        collect_leaves(member.parts, &inner, offset, leaves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Append, Forward, ForwardTma, Merge, RecordWords};

    #[test]
    fn leaves_follow_each_other_without_gaps() {
        fn check<T: Declared>() {
            let leaves = T::leaves();
            for pair in leaves.windows(2) {
                let bytes = match pair[0].cpp_type {
                    "int" | "unsigned" | "float" => 4,
                    "int[3]" => 12,
                    "unsigned long long[16]" => 128,
                    _ => 8,
                };
                assert_eq!(pair[0].offset + bytes, pair[1].offset, "{}", pair[1].path);
            }
        }
        check::<Forward>();
        check::<ForwardTma>();
        check::<RecordWords>();
    }

    /// The constant hash is FNV-1a of the text that its documentation promises.
    #[test]
    fn a_hash_is_that_of_the_flattened_declaration() {
        fn check<T: Declared>() {
            let mut text = Vec::new();
            for leaf in T::leaves() {
                text.extend_from_slice(format!("{}:{}@", leaf.path, leaf.cpp_type).as_bytes());
                text.extend_from_slice(&(leaf.offset as u64).to_le_bytes());
                text.push(b';');
            }
            assert_eq!(T::HASH, hash_bytes(FNV_OFFSET, &text), "{}", T::NAME);
        }
        check::<Forward>();
        check::<ForwardTma>();
        check::<Merge>();
        check::<Append>();
        // FNV-1a's published test vector for "a".
        assert_eq!(hash_bytes(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(Forward::HASH, ForwardTma::HASH);
    }

    /// Its members have the names, and so the hash, that they would have without it.
    #[test]
    fn a_part_in_place_leaves_no_trace() {
        let leaves = Forward::leaves();
        let heads = leaves.iter().position(|leaf| leaf.path == "heads").unwrap();
        let names: Vec<&str> = { leaves[heads..].iter() }
            .map(|leaf| leaf.path.as_str())
            .take(5)
            .collect();
        let expected = [
            "heads",
            "kv_heads",
            "head_dim",
            "value_dim",
            "sequences.batch",
        ];
        assert_eq!(names, expected);
        for members in [Forward::MEMBERS, Append::MEMBERS] {
            for member in members.iter().filter(|member| member.in_place) {
                assert_eq!(member.docs.len(), member.parts.len(), "{}", member.name);
            }
        }
    }

    #[test]
    fn a_name_a_type_and_an_offset_each_change_the_hash() {
        let lse = Forward::MEMBERS.iter().find(|member| member.name == "lse");
        let member = *lse.unwrap();
        let hash = |member| hash_members(FNV_OFFSET, &[member], None, 0);
        for other in [
            Member {
                name: "les",
                ..member
            },
            Member {
                offset: 136,
                ..member
            },
            Member {
                cpp_type: "double*",
                ..member
            },
        ] {
            assert_ne!(hash(other), hash(member));
        }
    }
}
