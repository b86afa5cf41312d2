//! The arguments of a launch: each is declared here once, with its place in every list, what errors call it, and its device address.

/// Declares the arguments of one kind of launch: `field: Variant = "name"` in the order of their lists.
macro_rules! arguments {
    (
        $(#[$of_enum:meta])* enum $Argument:ident;
        $(#[$of_struct:meta])* struct $Addresses:ident;
        $($(#[$doc:meta])* $field:ident: $Variant:ident = $name:literal;)*
    ) => {
        $(#[$of_enum])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $Argument {
            $($(#[$doc])* $Variant,)*
        }

        impl $Argument {
            /// How many there are.
            pub const COUNT: usize = [$($name),*].len();

            /// All of them. A variant as `usize` is its index here.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$Variant),*];

            /// What errors call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }

        $(#[$of_struct])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct $Addresses {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $Addresses {
            /// The address of each argument.
            pub fn from_fn(mut address: impl FnMut($Argument) -> u64) -> Self {
                $Addresses {
                    $($field: address($Argument::$Variant),)*
                }
            }

            /// The name and the address of each argument.
            #[must_use]
            pub const fn named(&self) -> [(&'static str, u64); $Argument::COUNT] {
                [$(($name, self.$field)),*]
            }

            pub(crate) const fn list(&self) -> [u64; $Argument::COUNT] {
                [$(self.$field),*]
            }
        }
    };
}

arguments! {
    /// An argument of a forward launch.
    enum Argument;
    /// Device addresses of one launch; 0 is "not given".
    struct Addresses;
    /// Queries.
    q: Q = "q";
    /// Keys.
    k: K = "k";
    /// Values.
    v: V = "v";
    /// Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
    out: Out = "out";
    /// Receives the lse as `f32`, `[batch, heads, length]`; for packed queries `[heads, rows]`.
    lse: Lse = "lse";
    /// `batch + 1` row offsets of packed queries, as `i32` or `u32`.
    query_offsets: QueryOffsets = "query_offsets";
    /// `batch + 1` row offsets of packed keys and values.
    key_offsets: KeyOffsets = "key_offsets";
    /// Used rows of each sequence's queries.
    query_lengths: QueryLengths = "query_lengths";
    /// Used rows of each sequence's keys and values.
    key_lengths: KeyLengths = "key_lengths";
    /// ALiBi slopes as `f32`.
    slopes: Slopes = "alibi_slopes";
    /// Sinks as `f32`, one per query head; minus infinity for none.
    sinks: Sinks = "sinks";
    /// The additive bias, in the tensors' element type.
    bias: Bias = "bias";
    /// The key mask, a byte each; 0 hides.
    key_mask: KeyMask = "key_mask";
    /// Numbers of the pages of keys and values, as `i32` or `u32`.
    block_table: BlockTable = "block_table";
    /// What keys in e4m3 are multiplied by, as `f32`: one number, or one for each key/value head.
    k_scale: KScale = "k_scale";
    /// The same of values.
    v_scale: VScale = "v_scale";
}

arguments! {
    /// An argument of a cache write's launch.
    enum AppendArgument;
    /// Device addresses of one cache write; 0 is "not given".
    struct AppendAddresses;
    /// Queries; rotated in place unless the description has a layout for `q_out`.
    q: Q = "q";
    /// Receives the rotated queries.
    q_out: QOut = "q_out";
    /// New keys.
    k: K = "k";
    /// New values.
    v: V = "v";
    /// The cache's keys.
    k_pages: KPages = "k_pages";
    /// The cache's values.
    v_pages: VPages = "v_pages";
    /// Slots of the new rows, as `i64`.
    slots: Slots = "slots";
    /// Numbers of pages, `[sequences, columns]`, as `i32` or `u32`.
    block_table: BlockTable = "block_table";
    /// `sequences + 1` row offsets of packed k, v and q.
    row_offsets: RowOffsets = "row_offsets";
    /// New rows of each sequence.
    row_lengths: RowLengths = "row_lengths";
    /// Rows that the cache has of each sequence already.
    key_lengths: KeyLengths = "key_lengths";
    /// Positions of the new rows, as `i64` if the description says so, else as `i32` or `u32`.
    positions: Positions = "positions";
    /// Table of cosines.
    cos: Cos = "cos";
    /// Table of sines.
    sin: Sin = "sin";
    /// What keys are divided by on their way into a cache in e4m3, as `f32`: one number, or one for each key/value head.
    k_scale: KScale = "k_scale";
    /// The same of values.
    v_scale: VScale = "v_scale";
}
