//! The two lists that others are made from: the operands of all operations, and the features of images.
//!
//! `Slots` has a value for each operand. What a number of a score means, [`Scoring`] says.
//!
//! [`Scoring`]: https://docs.rs/warptile/latest/warptile/struct.Scoring.html

use crate::capability::{Features, features};
use crate::operand::{Count, Elements, Kind, Operations, Row, Values, operands};

features! {
    /// cap * tanh(score / cap).
    SOFTCAP = 0, "a softcap";
    /// Slopes times distance, subtracted from scores.
    ALIBI = 1, "ALiBi";
    /// One logit a head that joins the denominator.
    SINKS = 2, "attention sinks";
    /// A tensor added to the scores.
    BIAS = 3, "an additive bias";
    /// A boolean tensor that hides keys.
    KEY_MASK = 4, "a boolean mask";
    /// Sequences that lie end to end.
    PACKED = 5, "packed sequences";
    /// Lengths in use that lie on the device.
    DEVICE_LENGTHS = 6, "lengths on the device";
    /// Keys and values in pages.
    PAGED = 7, "paged keys";
    /// Rows that do not start at multiples of 16 bytes.
    UNALIGNED = 8, "rows that don't start at multiples of 16 bytes";
    /// A negative scale, or with bf16 a tiny one.
    NEGATIVE_SCALE = 9, "a negative or tiny scale";
    /// The log-sum-exp of each row.
    LSE = 10, "lse";
    /// Keys and values in e4m3 with scales. Unlike the others it is no option: an image that has it takes no other keys.
    E4M3 = 11, "keys and values in e4m3";
    /// Values of a different head size than that of keys. Every kernel takes them; images that were compiled before do not.
    VALUE_DIM = 12, "values of another head size";
    /// Weights that are dropped at random.
    DROPOUT = 13, "dropout";
    /// Lists of the blocks of keys that blocks of queries see.
    BLOCKS = 14, "lists of blocks";
    /// A bias of f32, whatever the type of the queries.
    BIAS_F32 = 15, "a bias of f32";
}

impl Features {
    /// Together they may leave a row no weight of a key that `f16` can hold.
    pub const SMALL_WEIGHTS: Features = Features::ALIBI.union(Features::SINKS);

    /// What most kernels can do with scores.
    pub const SCORE_OPTIONS: Features = Features::SOFTCAP.union(Features::SMALL_WEIGHTS);

    /// Sets of features by their names in C++. Some kernels take the second, and Hopper's kernels of gradients the third.
    pub(crate) const SETS: [(&str, Features); 3] = [
        ("SCORE_OPTIONS", Features::SCORE_OPTIONS),
        ("SCORE_TENSORS", Features::BIAS.union(Features::KEY_MASK)),
        (
            "GRADIENT_FEATURES",
            { Features::SINKS.union(Features::VALUE_DIM) }
                .union(Features::PACKED)
                .union(Features::DEVICE_LENGTHS),
        ),
    ];
}

/// The options that have a number for each head, and the methods that builders have for them: gives docs, names and operands to
/// `$methods`.
#[doc(hidden)]
#[macro_export]
macro_rules! number_options {
    ($methods:ident) => {
        $methods! {
            /// ALiBi: subtracts `slope * distance` from the scores, where the distance of query `i` and key `j` is
            /// `|i + key length - query length - j|`. One slope per query head, or one per batch entry and query head, those of an entry
            /// next to each other.
            alibi_slopes: Slopes;
            /// Attention sinks: one logit per query head that joins the denominator of every row, as if there were one more key with
            /// that score and the value 0. A head whose logit is minus infinity has no sink.
            sinks: Sinks;
        }
    };
}

operands! {
    /// Queries. A cache write rotates them in place unless it is given `q_out`.
    Q = "q", Kind::Queries, Queries {operations: Operations::BOTH, file: Some("q"), python: Some("q")};
    /// Keys; of a cache write the new ones.
    K = "k", Kind::Keys, Keys {operations: Operations::BOTH, file: Some("k"), python: Some("k")};
    /// Values; of a cache write the new ones.
    V = "v", Kind::Keys, Keys {operations: Operations::BOTH, file: Some("v"), python: Some("v")};
    /// Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
    Out = "out", Kind::Queries, Output {written: true, python: Some("out")};
    /// The additive bias.
    Bias = "bias", Kind::Scores, Bias {feature: Features::BIAS, word: Some("bias"), help: "a random tensor added to the scores (not packed)", file: Some("bias"), python: Some("bias")};
    /// The key mask; 0 hides a key.
    KeyMask = "key_mask", Kind::Scores, U8
        {feature: Features::KEY_MASK, word: Some("keymask"), help: "a random tensor that hides keys, `mask` in a file (not packed)", file: Some("mask"), python: Some("key_mask")};
    /// Receives the rotated queries.
    QOut = "q_out", Kind::Queries, Queries {operations: Operations::APPEND, written: true};
    /// The cache's keys.
    KPages = "k_pages", Kind::Keys, Keys {operations: Operations::APPEND, written: true, python: Some("k_cache")};
    /// The cache's values.
    VPages = "v_pages", Kind::Keys, Keys {operations: Operations::APPEND, written: true, python: Some("v_cache")};
    /// The gradient of the output.
    DOut = "d_out", Kind::Queries, Output {operations: Operations::BACKWARD};
    /// Receives the gradient of the queries.
    DQ = "dq", Kind::Queries, Queries {operations: Operations::BACKWARD, written: true, gradient_of: Some(Operand::Q)};
    /// Receives the gradient of the keys.
    DK = "dk", Kind::Keys, Keys {operations: Operations::BACKWARD, written: true, gradient_of: Some(Operand::K)};
    /// Receives the gradient of the values.
    DV = "dv", Kind::Keys, Keys {operations: Operations::BACKWARD, written: true, gradient_of: Some(Operand::V)};
    /// Receives the gradient of the bias, `[batch, queries, heads, keys]`, with 1 for a dimension that the bias does not depend on.
    DBias = "d_bias", Kind::Scores, Queries {operations: Operations::BACKWARD, written: true, gradient_of: Some(Operand::Bias)};
    /// Receives the lse, `[batch, heads, length]`; for packed queries `[heads, rows]`.
    Lse = "lse", Kind::List(Count::Rows), F32 {written: true, feature: Features::LSE, values: Values::Any, python: Some("lse")};
    /// The gradient of the lse, arranged as the lse.
    DLse = "d_lse", Kind::List(Count::Rows), F32 {operations: Operations::BACKWARD, values: Values::Any};
    /// Receives the sum over each row of the output times its gradient, less the gradient of its lse.
    Delta = "delta", Kind::List(Count::PaddedRows), F32 {operations: Operations::BACKWARD, written: true};
    /// Receives the lse to base 2; plus infinity for rows that see no key or whose lse is farther from 0 than `Prepass::LARGEST_LSE`, and for rows past a
    /// sequence's end.
    ScaledLse = "scaled_lse", Kind::List(Count::PaddedRows), F32 {operations: Operations::BACKWARD, written: true};
    /// Row offsets of packed queries.
    QueryOffsets = "query_offsets", Kind::List(Count::Offsets), I32 {file: Some("cu_seqlens_q"), python: Some("cu_seqlens_q")};
    /// Row offsets of packed keys and values.
    KeyOffsets = "key_offsets", Kind::List(Count::Offsets), I32 {file: Some("cu_seqlens_k"), python: Some("cu_seqlens_k")};
    /// Used rows of each sequence's queries.
    QueryLengths = "query_lengths", Kind::List(Count::Sequences), I32 {python: Some("seqused_q")};
    /// Used rows of each sequence's keys and values; of a cache write those that the cache has already.
    KeyLengths = "key_lengths", Kind::List(Count::Sequences), I32
        {operations: Operations::BOTH, file: Some("key_lengths"), python: Some("seqused_k")};
    /// Numbers of the pages of each sequence, in order.
    BlockTable = "block_table", Kind::List(Count::Table), I32
        {operations: Operations::BOTH, feature: Features::PAGED, file: Some("block_table"), python: Some("block_table")};
    /// ALiBi slopes: `slope * distance` is subtracted from the scores.
    Slopes = "alibi_slopes", Kind::List(Count::Slopes), F32
        {feature: Features::ALIBI, word: Some("alibi"), help: "head or batch: random slopes per head, or per sequence and head [no ALiBi]", file: Some("alibi_slopes"), python: Some("alibi_slopes")};
    /// Sinks: a logit for each query head that joins the denominator of its rows; minus infinity for none.
    Sinks = "sinks", Kind::List(Count::QueryHeads), F32
        {feature: Features::SINKS, values: Values::FiniteOrNone, word: Some("sinks"), help: "a random logit per head that joins the denominator", file: Some("sinks"), python: Some("sinks")};
    /// Receives the gradients of the sinks: for each head the sum of `-exp(sink - lse) * delta` over all its rows.
    DSinks = "d_sinks", Kind::List(Count::QueryHeads), F32 {operations: Operations::BACKWARD, written: true, gradient_of: Some(Operand::Sinks), values: Values::Any};
    /// The random numbers of dropout: seed and offset, each as two words, the low one first, and the numbers of the first sequence, head, query and key.
    DropoutState = "dropout_state", Kind::List(Count::State), I32
        {feature: Features::DROPOUT, file: Some("dropout_state"), python: Some("dropout_state")};
    /// Where each row of a list of blocks begins in `block_indices`, and where the last one ends.
    BlockOffsets = "block_offsets", Kind::List(Count::BlockRows), I32
        {feature: Features::BLOCKS, file: Some("block_offsets")};
    /// Numbers of the blocks of keys that each block of queries sees, in ascending order; one below 0 ends a row.
    BlockIndices = "block_indices", Kind::List(Count::Blocks), I32
        {feature: Features::BLOCKS, file: Some("block_indices")};
    /// Scales of quantized keys, finite and above 0: attention multiplies by them, and a cache write divides by them.
    KScale = "k_scale", Kind::List(Count::Scales), F32
        {operations: Operations::BOTH, feature: Features::E4M3, values: Values::Positive, file: Some("k_scale"), python: Some("k_descale")};
    /// Scales of quantized values, as those of keys.
    VScale = "v_scale", Kind::List(Count::Scales), F32
        {operations: Operations::BOTH, feature: Features::E4M3, values: Values::Positive, file: Some("v_scale"), python: Some("v_descale")};
    /// Slots of the new rows.
    NewSlots = "slots", Kind::List(Count::NewRows), I64 {operations: Operations::APPEND};
    /// Row offsets of packed new rows.
    RowOffsets = "row_offsets", Kind::List(Count::Offsets), I32 {operations: Operations::APPEND};
    /// New rows of each sequence.
    RowLengths = "row_lengths", Kind::List(Count::Sequences), I32 {operations: Operations::APPEND};
    /// Positions of the new rows.
    Positions = "positions", Kind::List(Count::NewRows), Position {operations: Operations::APPEND};
    /// Table of cosines.
    Cos = "cos", Kind::List(Count::Angles), Angles {operations: Operations::APPEND, python: Some("rotary_cos")};
    /// Table of sines.
    Sin = "sin", Kind::List(Count::Angles), Angles {operations: Operations::APPEND, python: Some("rotary_sin")};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_is_a_number_for_each_head_has_a_method_of_its_name() {
        macro_rules! methods {
            ($($(#[$doc:meta])* $name:ident: $Operand:ident;)*) => {
                [$((stringify!($name), Operand::$Operand)),*]
            };
        }
        let methods = number_options!(methods);
        let lists = Operand::of_scores().filter(|operand| operand.kind() != Kind::Scores);
        let lists: Vec<_> = lists.map(|operand| (operand.name(), operand)).collect();
        assert_eq!(methods.as_slice(), lists);
    }
}
