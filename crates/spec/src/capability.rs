//! The capabilities that an image declares: its role, its schedule and its features.

use std::fmt;
use std::ops::{BitOr, BitOrAssign, Sub};

use crate::abi::{CLUSTER_CTAS, PAIR_CTAS};
use crate::{Kind, Operand};

/// Declares the features: the name in C++, the bit and the words of each.
macro_rules! features {
    ($($(#[doc = $doc:literal])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Features {
            $($(#[doc = $doc])* pub const $name: Features = Features::bit($bit);)*

            /// Every feature with its name in C++ and in words.
            pub(crate) const TABLE: &'static [(Features, &'static str, &'static str)] =
                &[$((Features::$name, stringify!($name), $text)),*];
        }
    };
}
pub(crate) use features;

/// A set of features: what a problem needs, or what an image can do.
///
/// ```
/// use warptile_spec::Features;
/// let needs = Features::ALIBI | Features::BIAS;
/// let missing = needs - Features::ALIBI;
/// assert_eq!(missing.to_string(), "an additive bias");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[must_use]
pub struct Features(u32);

impl Features {
    /// No feature.
    pub const fn empty() -> Self {
        Features(0)
    }

    /// Every feature there is.
    pub const fn all() -> Self {
        Features((1 << Self::TABLE.len()) - 1)
    }

    /// The feature with this bit.
    pub(crate) const fn bit(bit: u32) -> Self {
        Features(1 << bit)
    }

    /// The set with these bits; `None` if one of them is not a feature.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits & !Self::all().0 {
            0 => Some(Features(bits)),
            _ => None,
        }
    }

    /// One bit a feature.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if every feature of `other` is in this set.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// The features of both sets together.
    pub const fn union(self, other: Features) -> Self {
        Features(self.0 | other.0)
    }

    /// The features of this set that are not in `other`.
    pub const fn difference(self, other: Features) -> Self {
        Features(self.0 & !other.0)
    }

    /// The features in the set, one by one.
    pub fn iter(self) -> impl Iterator<Item = Features> {
        Self::TABLE
            .iter()
            .map(|&(feature, ..)| feature)
            .filter(move |&feature| self.contains(feature))
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        self.union(other)
    }
}

impl BitOrAssign for Features {
    fn bitor_assign(&mut self, other: Features) {
        *self = *self | other;
    }
}

impl Sub for Features {
    type Output = Features;

    fn sub(self, other: Features) -> Features {
        self.difference(other)
    }
}

/// In words, joined by commas; nothing for the empty set.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = Self::TABLE
            .iter()
            .filter(|(feature, ..)| self.contains(*feature))
            .map(|&(.., text)| text)
            .collect();
        f.pad(&words.join(", "))
    }
}

macro_rules! numbered {
    ($($(#[$meta:meta])* enum $name:ident: $prefix:literal {
        $($(#[doc = $doc:literal])* $variant:ident = $number:literal, $text:literal, $cpp:literal;)*
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[non_exhaustive]
            pub enum $name {
                $($(#[doc = $doc])* $variant = $number,)*
            }

            impl $name {
                /// The one with this number in an image's record.
                pub const fn from_number(number: u32) -> Option<Self> {
                    match number {
                        $($number => Some($name::$variant),)*
                        _ => None,
                    }
                }

                /// Its number in an image's record.
                pub const fn number(self) -> u32 {
                    self as u32
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(match self {
                        $($name::$variant => $text,)*
                    })
                }
            }
        )*

        const NUMBERED: &[(&str, &str, u32)] = &[$($(($prefix, $cpp, $number),)*)*];
    };
}

numbered! {
    /// The step of a computation that an image is for.
    enum Role: "ROLE_" {
        /// From queries, keys and values to the output.
        Forward = 1, "forward", "FORWARD";
        /// A range of the keys, to a partial output.
        Split = 2, "split", "SPLIT";
        /// From partial outputs to the output.
        Combine = 3, "combine", "COMBINE";
        /// New keys and values into a cache.
        Append = 4, "append", "APPEND";
        /// Numbers of query rows, from the output and its gradient: the first step of the backward pass.
        Prepass = 5, "prepass", "PREPASS";
        /// From a tile of keys to the gradients of these keys and values.
        KeyGradients = 6, "key gradients", "KEY_GRADIENTS";
        /// From a tile of queries to their gradient.
        QueryGradients = 7, "query gradients", "QUERY_GRADIENTS";
        /// From a tile of keys to the gradients of these keys and values, and to a part of the gradient of queries.
        AllGradients = 8, "all gradients", "ALL_GRADIENTS";
        /// From sums to the gradient of queries.
        QuerySums = 9, "query sums", "QUERY_SUMS";
        /// From numbers of query rows to the gradient of sinks.
        SinkGradients = 10, "sink gradients", "SINK_GRADIENTS";
        /// From a key mask to the sequences of which it shows the first keys and no others: the first step of attention with a padding
        /// mask.
        KeyRuns = 11, "key runs", "KEY_RUNS";
        /// From queries and keys to the gradient of a bias, tile by tile.
        BiasGradients = 12, "bias gradients", "BIAS_GRADIENTS";
    }

    /// How tiles come to CTAs.
    enum Schedule: "SCHEDULE_" {
        /// A CTA computes one tile: the grid is the number of tiles.
        OneTile = 1, "one tile a CTA", "ONE_TILE";
        /// CTAs stay and take one tile after the other, from the counter if there is one.
        Persistent = 2, "persistent", "PERSISTENT";
        /// CTAs share the keys of all sequences evenly, and merge the results of tiles that several have a part of.
        SharedKeys = 3, "shared keys", "SHARED_KEYS";
        /// As one tile a CTA; the rows of a tile are queries with each of the heads that share a key/value head.
        OneGroupTile = 4, "one tile a CTA, of all heads that share keys", "ONE_GROUP_TILE";
        /// As persistent, in clusters of two CTAs: a number is two tiles that see the same keys, and each CTA loads half of these.
        Pairs = 5, "persistent pairs", "PAIRS";
        /// As persistent; the rows of a tile are queries with each of the heads that share a key/value head.
        PersistentGroups = 6, "persistent, tiles of all heads that share keys", "PERSISTENT_GROUPS";
        /// A cluster of [`Schedule::CLUSTER`] CTAs computes one tile, of all heads that share keys, or several
        /// clusters do: the grid is as many times the number of tiles. They share the tile's keys evenly, and merge
        /// their results in their shared memory, those of several clusters in the workspace.
        ClusterTile = 7, "one tile a cluster, of all heads that share keys", "CLUSTER_TILE";
    }
}

impl Role {
    /// The steps that compute gradients where no kernel computes several of them together, each with its gradients.
    pub const OF_GRADIENTS: [(Role, &'static [Operand]); 4] = [
        (Role::KeyGradients, &[Operand::DK, Operand::DV]),
        (Role::QueryGradients, &[Operand::DQ]),
        (Role::BiasGradients, &[Operand::DBias]),
        (Role::SinkGradients, &[Operand::DSinks]),
    ];

    /// Returns true for a step that computes the gradient of a list, from numbers of query rows alone.
    pub fn is_of_list(self) -> bool {
        let is_list = |operand: &Operand| matches!(operand.kind(), Kind::List(_));
        let mut steps = Self::OF_GRADIENTS.into_iter();
        steps.any(|(role, gradients)| role == self && gradients.iter().all(is_list))
    }
}

macro_rules! families {
    ($($(#[doc = $doc:literal])* $Family:ident = $name:literal;)*) => {
        /// A way of computing attention; each family is checked against the one before it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Family {
            $($(#[doc = $doc])* $Family,)*
        }

        impl Family {
            /// All of them.
            pub const ALL: [Family; [$($name),*].len()] = [$(Family::$Family),*];

            /// Its name in a kernel's.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Family::$Family => $name,)*
                }
            }
        }
    };
}

families! {
    /// CUDA cores, fp32 accumulation; every element type of queries.
    Scalar = "scalar";
    /// `nvcuda::wmma` tensor-core tiles in shared memory.
    Wmma = "wmma";
    /// `ldmatrix` and `mma.sync`, scores in registers.
    Mma = "mma";
    /// TMA, mbarriers and `wgmma`; compute capability 9.0 only.
    Wgmma = "wgmma";
    /// Few queries against many keys: `mma.sync` on the query heads of a key/value head, keys shared among all CTAs.
    Decode = "decode";
    /// Results over disjoint keys merged into one, a thread for 16 bytes of a row.
    Merge = "merge";
    /// New keys and values written into a cache, and rotated, a thread for 16 bytes of a row.
    Append = "append";
    /// The pre-pass of the backward pass, a CTA for 64 query rows of a head.
    Prepass = "prepass";
    /// Gradients of keys and values, by mma.sync, or of `f32` by the vector units.
    Dkv = "dkv";
    /// The gradient of queries, likewise.
    Dq = "dq";
    /// The gradients of sinks, a CTA for each head.
    Dsinks = "dsinks";
    /// The gradient of a bias, by mma.sync, or of `f32` by the vector units: a CTA for each tile of it.
    Dbias = "dbias";
    /// All gradients in one pass, by TMA, mbarriers and `wgmma`; compute capability 9.0 only.
    Dqkv = "dqkv";
    /// The gradient of queries of the sums that [`Family::Dqkv`] leaves.
    Dqsum = "dqsum";
    /// Gradients of keys and values of large heads, by TMA, mbarriers and `wgmma`; compute capability 9.0 only.
    Wdkv = "wdkv";
    /// The gradient of queries, likewise.
    Wdq = "wdq";
    /// How many keys a key mask shows of each sequence, where these are the first ones: a CTA for all sequences.
    Runs = "runs";
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Schedule {
    /// CTAs of a cluster that computes a tile.
    pub const CLUSTER: u32 = CLUSTER_CTAS;

    /// CTAs of a cluster; 1 where there are none.
    pub const fn ctas_of_cluster(self) -> u32 {
        match self {
            Schedule::Pairs => PAIR_CTAS,
            Schedule::ClusterTile => Self::CLUSTER,
            _ => 1,
        }
    }

    /// Returns true if the rows of a tile are queries with each of the heads that share a key/value head, where CTAs
    /// do not share keys evenly.
    pub const fn has_group_tiles(self) -> bool {
        matches!(
            self,
            Schedule::OneGroupTile | Schedule::PersistentGroups | Schedule::ClusterTile
        )
    }

    /// Returns true if a kernel waits itself for the launch before it, in machine code for compute capability 9.0 and
    /// newer, so that its launches may begin before that one has ended.
    pub const fn begins_early(self) -> bool {
        !matches!(self, Schedule::OneTile)
    }

    /// Returns true if CTAs stay and take one tile, or pair of tiles, after the other.
    pub const fn is_persistent(self) -> bool {
        matches!(
            self,
            Schedule::Persistent | Schedule::Pairs | Schedule::PersistentGroups
        )
    }
}

/// The C++ constants of roles that only the backward pass has: forward's images do not depend on them.
pub(crate) fn cpp_roles_of_backward() -> String {
    let of_backward = Role::Prepass.number()..=Role::SinkGradients.number();
    { NUMBERED.iter() }
        .filter(|row| is_apart(row) && of_backward.contains(&row.2))
        .map(cpp_number)
        .collect()
}

fn cpp_number((prefix, name, number): &(&str, &str, u32)) -> String {
    format!("constexpr unsigned {prefix}{name} = {number};\n")
}

/// Returns true for roles whose constants are in a header of their own.
fn is_apart((prefix, _, number): &(&str, &str, u32)) -> bool {
    *prefix == "ROLE_" && *number >= Role::Prepass.number()
}

/// The C++ constants of features, roles and schedules, except for those of kernels with a header of their own.
pub(crate) fn cpp_constants() -> String {
    let mut text = String::from("// Bits of `features` in an image's record.\n");
    let apart = Features::DROPOUT | Features::BLOCKS | Features::BIAS_F32;
    let others = |(feature, ..): &&(Features, _, _)| !apart.contains(*feature);
    for (feature, name, _) in Features::TABLE.iter().filter(others) {
        text += &format!(
            "constexpr unsigned FEATURE_{name} = 1u << {};\n",
            feature.0.trailing_zeros()
        );
    }
    // No variables: these would be data in each image.
    let sets = Features::SETS.map(|(name, features)| format!("{name} = {}", features.0));
    text += &format!("enum : unsigned {{ {} }};\n", sets.join(", "));
    let others = NUMBERED.iter().filter(|row| !is_apart(row));
    text.extend(others.map(cpp_number));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_single_bits_without_gaps() {
        let all = Features::all();
        assert_eq!(all.iter().count(), Features::TABLE.len());
        assert_eq!(all.bits(), (1 << Features::TABLE.len()) - 1);
        assert_eq!(Features::from_bits(all.bits()), Some(all));
        assert_eq!(Features::from_bits(all.bits() + 1), None);
    }

    #[test]
    fn sets_subtract_and_print_in_words() {
        let needs = Features::ALIBI | Features::PACKED;
        let missing = needs - Features::PACKED;
        assert_eq!(missing, Features::ALIBI);
        assert!(needs.contains(missing) && !missing.contains(needs));
        assert_eq!(needs.to_string(), "ALiBi, packed sequences");
        assert_eq!(Features::empty().to_string(), "");
    }

    #[test]
    fn numbers_of_roles_and_schedules_go_there_and_back() {
        let roles: Vec<_> = (1..).map_while(Role::from_number).collect();
        assert_eq!(roles.last(), Some(&Role::BiasGradients));
        assert!(
            (1..)
                .zip(roles)
                .all(|(number, role)| role.number() == number)
        );
        assert_eq!(Role::from_number(0), None);
        assert_eq!(
            Schedule::from_number(Schedule::Persistent.number()),
            Some(Schedule::Persistent)
        );
        assert_eq!(Schedule::from_number(8), None);
    }
}
