//! From a call to the parameter block of its kernel.

use warptile_driver::{Driver, Swizzle, TensorMap, TensorMapElement};
use warptile_kernels::abi::{self, BOX_COLUMNS, OUTPUT_BOX_ROWS, QUERY_BOX_ROWS};
use warptile_kernels::{Features, Image, Operand, Schedule, Slots};

use crate::error::Result;
use crate::plan::{LaunchShape, Scratch, Step, packs_rows, tile_order};
use crate::spec::{Call, Diagonal, Dropout, ElementType, Layout};

/// The block of kernels that read through addresses.
///
/// Counts fit 32 bits: the call has checked them against [`MAX_LEN`](crate::spec::MAX_LEN), and strides that are stepped along lie
/// below their layout's checked extent.
pub(super) fn forward(
    call: &Call,
    shape: &LaunchShape,
    at: &Slots<u64>,
    workspace: u64,
) -> abi::Forward {
    let in_workspace = |used: bool, offset: usize| match used {
        true => workspace + offset as u64,
        false => 0,
    };
    let queries = call.queries();
    let rows = call.q().rows();
    let pages = call.pages().map_or_else(abi::Pages::default, |paged| {
        let table_row = stride(&paged.layout().elements(), 1);
        pages(at, table_row, [paged.count(), paged.rows()])
    });
    abi::Forward {
        q: tensor(at[Operand::Q], call.q()),
        k: tensor(at[Operand::K], call.k()),
        v: tensor(at[Operand::V], call.v()),
        out: tensor(at[Operand::Out], call.out()),
        lse: at[Operand::Lse],
        lse_batch: match queries.is_packed() {
            true => 0,
            false => (call.heads().query * rows) as i64,
        },
        lse_head: rows as i64,
        sequences: sequences(call, at, &pages),
        pages,
        scoring: scoring(call, at),
        work: abi::Work {
            counter: in_workspace(shape.needs_workspace(), 0),
            semaphores: in_workspace(shape.shares_keys, Scratch::SEMAPHORES_AT),
            partials: in_workspace(shape.shares_keys, Scratch::PARTS_AT),
            tiles: shape.tiles as i32,
            query_tiles: shape.query_tiles as i32,
            heads_at_once: shape.heads_at_once as i32,
            side_by_side: shape.side_by_side as i32,
            splits: shape.splits as i32,
            keys_per_split: match shape.shares_keys {
                true => call.splits().keys().map_or(0, |keys| keys as i32),
                false => 0,
            },
        },
        heads: call.heads().into(),
    }
}

/// Pages, their rows and their number, and their table, whose rows begin `table_row` entries apart.
pub(super) fn pages(at: &Slots<u64>, table_row: i64, [count, rows]: [usize; 2]) -> abi::Pages {
    abi::Pages::of(
        at[Operand::BlockTable],
        table_row,
        rows as i32,
        count as i32,
    )
}

/// Lengths, and where sequences begin.
pub(super) fn sequences(call: &Call, at: &Slots<u64>, pages: &abi::Pages) -> abi::Sequences {
    let count = |n: usize| n as i32;
    abi::Sequences {
        query_offsets: at[Operand::QueryOffsets],
        key_offsets: at[Operand::KeyOffsets],
        query_lengths: at[Operand::QueryLengths],
        key_lengths: at[Operand::KeyLengths],
        batch: count(call.batch()),
        query_len: count(call.query_len()),
        key_len: count(call.key_len()),
        query_rows: count(call.queries().rows()),
        key_rows: count(call.keys().rows()),
        ..Default::default()
    }
    .with_ragged(pages)
}

/// The scales of quantized keys and values. `count` is the number of scales of an operand.
pub(super) fn scales(at: &Slots<u64>, count: impl Fn(Operand) -> usize) -> abi::KeyScales {
    let step = |operand| i32::from(count(operand) > 1);
    abi::KeyScales {
        k: at[Operand::KScale],
        v: at[Operand::VScale],
        k_step: step(Operand::KScale),
        v_step: step(Operand::VScale),
    }
}

/// The numbers of dropout.
pub(super) fn dropout(call: &Call, at: &Slots<u64>) -> abi::Dropout {
    abi::Dropout {
        state: at[Operand::DropoutState],
        dropped: call.scoring().dropout.map_or(0, Dropout::threshold),
        factor: call.dropout_factor(),
    }
}

/// The lists of blocks.
pub(super) fn blocks(call: &Call, at: &Slots<u64>) -> abi::BlockLists {
    let count = |n: usize| n as i32;
    let Some(blocks) = call.blocks() else {
        return abi::BlockLists::default();
    };
    let lists = blocks.lists();
    let [batch_step, head_step] = lists.steps(call.heads().query).map(count);
    abi::BlockLists {
        offsets: at[Operand::BlockOffsets],
        indices: at[Operand::BlockIndices],
        rows: count(blocks.rows()),
        count: count(blocks.counts()[1]),
        batch_step,
        head_step,
        queries: count(lists.queries()),
        keys: count(lists.keys()),
    }
}

/// The map of the bias or the key mask whose rows the copy engine brings, and the columns in front of its first element: none. Without that
/// tensor all that the kernel asks for lies outside of a map of the queries, and arrives as zeros. The context must be current.
///
/// # Errors
/// What the driver reports.
pub(super) fn boxes_map(
    driver: &Driver,
    call: &Call,
    operand: Operand,
    at: &Slots<u64>,
) -> Result<(abi::TensorMap, i32)> {
    /// Behind the last column of any tensor.
    const OUTSIDE: i32 = 1 << 30;
    let boxes = [QUERY_BOX_ROWS, 1];
    let Some(layout) = call.layout(operand) else {
        let map = tensor_map(driver, call.element(), at[Operand::Q], call.q(), boxes)?;
        return Ok((map, OUTSIDE));
    };
    let elements = Elements::of(call.type_of(operand));
    let mut shape = layout.shape;
    for dimension in [0, 2] {
        if layout.strides[dimension] == 0 {
            shape[dimension] = 1;
        }
    }
    let layout = Layout::new(shape, layout.strides);
    Ok((map_of(driver, elements, at[operand], &layout, boxes)?, 0))
}

/// The key mask of a call in which it is the same for all queries and heads.
pub(super) fn key_runs(call: &Call, at: &Slots<u64>) -> abi::KeyRuns {
    let count = |n: usize| n as i32;
    abi::KeyRuns {
        batch: count(call.batch()),
        query_len: count(call.query_len()),
        key_len: count(call.key_len()),
        ..abi::KeyRuns::of(&scoring(call, at))
    }
}

/// The stride of a dimension; 0 for one of size 1, regardless of the layout, because it is never stepped along.
fn stride(layout: &Layout, dimension: usize) -> i64 {
    match layout.shape[dimension] {
        0 | 1 => 0,
        _ => layout.strides[dimension] as i64,
    }
}

pub(super) fn tensor(address: u64, layout: &Layout) -> abi::Tensor {
    abi::Tensor {
        address,
        batch: stride(layout, 0),
        row: stride(layout, 1),
        head: stride(layout, 2),
    }
}

pub(super) fn scoring(call: &Call, at: &Slots<u64>) -> abi::Scoring {
    let mask = call.mask();
    // Kernels know the two aligned diagonals. From any other the sides reach as far as from the top-left one, moved by the offset: a side
    // may be negative then, but never below what hides every key of every query.
    let offset = match mask.diagonal {
        Diagonal::At(offset) => i64::from(offset),
        _ => 0,
    };
    let side = |side: Option<u32>, moved: i64, all: usize| {
        side.map_or(abi::WINDOW_UNLIMITED, |keys| {
            (i64::from(keys) + moved).clamp(-(all as i64), abi::WINDOW_UNLIMITED.into()) as i32
        })
    };
    let steps = |operand| match call.layout(operand) {
        Some(layout) => [0, 1, 2, 3].map(|dimension| stride(layout, dimension)),
        None => [0; 4],
    };
    abi::Scoring {
        window_left: side(mask.left, -offset, call.key_len()),
        window_right: side(mask.right, offset, call.query_len()),
        align_top_left: i32::from(mask.diagonal != Diagonal::BottomRight),
        ..Default::default()
    }
    .with_numbers(call.scoring(), &call.heads())
    .with_operands(at, steps)
}

/// Returns true if CTAs that have left a part of a tile wait for the others, and each adds up a share: of packed rows, where all run at
/// once. Without a counter the kernel does (kernels/forward/wgmma_joint_sum.cuh).
fn sums_by_all(image: &Image, shape: &LaunchShape) -> bool {
    packs_rows(image) && !shape.draws_tiles
}

/// The largest power of two that divides `n`.
const fn power_of_two_in(n: u32) -> u32 {
    n & n.wrapping_neg()
}

/// The elements of a tensor map, and the swizzle of a box's rows over all of their bytes.
struct Elements {
    element: TensorMapElement,
    bytes: u64,
    swizzle: Swizzle,
}

impl Elements {
    /// Numbers of f16 or bf16, or bytes.
    fn of(element: Option<ElementType>) -> Self {
        match element {
            None => Elements {
                element: TensorMapElement::U8,
                bytes: 1,
                swizzle: Swizzle::Bytes64,
            },
            Some(element) => Elements {
                element: match element {
                    ElementType::Bf16 => TensorMapElement::Bf16,
                    _ => TensorMapElement::F16,
                },
                bytes: element.size() as u64,
                swizzle: Swizzle::Bytes128,
            },
        }
    }
}

/// The map of a tensor of f16 or bf16, by which a box of rows and heads is copied. The context must be current.
fn tensor_map(
    driver: &Driver,
    element: ElementType,
    address: u64,
    layout: &Layout,
    rows_heads: [u32; 2],
) -> Result<abi::TensorMap> {
    map_of(
        driver,
        Elements::of(Some(element)),
        address,
        layout,
        rows_heads,
    )
}

fn map_of(
    driver: &Driver,
    elements: Elements,
    address: u64,
    layout: &Layout,
    [box_rows, box_heads]: [u32; 2],
) -> Result<abi::TensorMap> {
    let [batch, rows, heads, head_dim] = layout.shape.map(|extent| extent as u64);
    // A stride that is never stepped along only has to satisfy the encoder.
    let stride = |dimension: usize| match layout.shape[dimension] {
        0 | 1 => 16,
        _ => layout.strides[dimension] as u64 * elements.bytes,
    };
    let map = TensorMap::tiled(
        elements.element,
        address,
        &[head_dim, rows, heads, batch],
        &[stride(1), stride(2), stride(0)],
        &[BOX_COLUMNS, box_rows, box_heads, 1],
    )
    .swizzle(elements.swizzle)
    .encode(driver)?;
    Ok(bytemuck::cast(map))
}

/// The block of the kernels of the backward pass that read through tensor maps. The context must be current.
pub(super) fn backward_tma(
    driver: &Driver,
    call: &Call,
    d_out: &Layout,
    step: &Step,
    backward: abi::Backward,
) -> Result<abi::BackwardTma> {
    let map = |address: u64, layout: &Layout, rows: u32| {
        tensor_map(driver, call.element(), address, layout, [rows, 1])
    };
    let tiling = &step.image.tiling;
    let block_m = tiling.block_m.min(QUERY_BOX_ROWS);
    let q = || map(backward.q.address, call.q(), block_m);
    let k = || map(backward.k.address, call.k(), tiling.block_n);
    // A tensor map cannot have an extent of 0. Without rows the kernel reads none, and another's map stands in.
    let has_queries = call.query_len().min(call.queries().rows()) > 0;
    let has_keys = call.key_len().min(call.keys().rows()) > 0;
    let (q_map, d_out_map) = match has_queries {
        true => (q()?, map(backward.d_out.address, d_out, block_m)?),
        false => (k()?, k()?),
    };
    let (k_map, v_map) = match has_keys {
        true => (k()?, map(backward.v.address, call.v(), tiling.block_n)?),
        false => (q()?, q()?),
    };
    Ok(abi::BackwardTma {
        q_map,
        k_map,
        v_map,
        d_out_map,
        backward,
        ..Default::default()
    })
}

/// The block of kernels that read and write through tensor maps, which take f16 and bf16 only. The context must be current.
pub(super) fn forward_tma(
    driver: &Driver,
    call: &Call,
    step: &Step,
    shape: &LaunchShape,
    forward: abi::Forward,
) -> Result<abi::ForwardTma> {
    let image = step.image;
    let block_n = image.tiling.block_n;
    let boxes = |address, layout: &Layout, rows_heads| {
        tensor_map(driver, call.element(), address, layout, rows_heads)
    };
    let map = |address, layout, box_rows| boxes(address, layout, [box_rows, 1]);
    // Where a tile has all heads that share keys, a box has rows of each of them; its number of rows is the same. Images that pack rows
    // load and store these without a map.
    let query_heads = match image.schedule {
        Schedule::PersistentGroups if !packs_rows(image) => call.heads().group_size() as u32,
        _ => 1,
    };
    let query_box = [QUERY_BOX_ROWS / query_heads, query_heads];
    // A warp's rows are those of one head, or of two with fewer rows each.
    let output_rows = OUTPUT_BOX_ROWS.min(query_box[0]);
    let output_box = [output_rows, OUTPUT_BOX_ROWS / output_rows];
    let q_map = boxes(forward.q.address, call.q(), query_box)?;
    // A tensor map cannot have an extent of 0. Without keys the kernel reads neither, so q's stands in.
    let (k_map, v_map) = match call.key_len() {
        0 => (q_map, q_map),
        _ => {
            let rows = match call.pages() {
                _ if image.features.contains(Features::BLOCKS) => abi::LISTED_BOX_ROWS,
                // As `PageLoader::box_rows` in kernels/forward/wgmma_blocks.cuh.
                Some(pages) => power_of_two_in(pages.rows() as u32).min(power_of_two_in(block_n)),
                None => block_n,
            };
            (
                map(forward.k.address, call.k(), rows)?,
                map(forward.v.address, call.v(), rows)?,
            )
        }
    };
    let mut block = abi::ForwardTma {
        q_map,
        k_map,
        v_map,
        out_map: boxes(forward.out.address, call.out(), output_box)?,
        forward,
        ..Default::default()
    };
    if sums_by_all(image, shape) {
        block.forward.work.counter = 0;
    }
    if let Some(order) = tile_order(step, call, shape) {
        block.ordered = order.len() as i32;
        block.order[..order.len()].copy_from_slice(&order);
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Mask, Scoring};

    fn shape() -> LaunchShape {
        LaunchShape {
            grid: 1,
            tiles: 4,
            query_tiles: 4,
            heads_at_once: 1,
            side_by_side: 1,
            draws_tiles: true,
            shares_keys: false,
            splits: 1,
            workspace_bytes: 256,
        }
    }

    fn block(call: &Call) -> abi::Forward {
        forward(call, &shape(), &Slots::default(), 77)
    }

    #[test]
    fn windows_are_capped_at_unlimited() {
        let layout = Layout::bshd([1, 4, 2, 8]);
        let window = |mask: Mask| {
            let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
                .scoring(Scoring::new().mask(mask))
                .build()
                .unwrap();
            let scoring = block(&call).scoring;
            (
                scoring.window_left,
                scoring.window_right,
                scoring.align_top_left,
            )
        };
        let all = abi::WINDOW_UNLIMITED;
        assert_eq!(window(Mask::none()), (all, all, 0));
        assert_eq!(window(Mask::causal()), (all, 0, 0));
        let at = |mask: Mask, offset| window(mask.diagonal(Diagonal::At(offset)));
        let top_left = Mask::causal().diagonal(Diagonal::TopLeft);
        assert_eq!(window(top_left), (all, 0, 1));
        assert_eq!(at(Mask::causal(), 3), (all, 3, 1));
        assert_eq!(at(Mask::window(5, 1), 7), (-2, 8, 1));
        // 4 queries and 4 keys.
        assert_eq!(at(Mask::window(5, 1), i32::MAX), (-4, all, 1));
        assert_eq!(at(Mask::window(5, 1), i32::MIN), (all, -4, 1));
        assert_eq!(window(Mask::window(3, u32::MAX)), (3, all, 0));
        assert_eq!(window(Mask::window(1 << 30, 7)), (all, 7, 0));
    }

    #[test]
    fn dense_strides_and_lse() {
        let q = Layout::bhsd([2, 8, 100, 64]);
        let k = Layout::bshd([2, 300, 2, 64]);
        let mut scoring = Scoring::new();
        scoring.alibi = Some(crate::spec::AlibiShape::PerBatchHead);
        let call = Call::builder(&q, &k, &k, ElementType::F16)
            .scoring(scoring)
            .build()
            .unwrap();
        let block = block(&call);
        assert_eq!(
            (block.q.batch, block.q.row, block.q.head),
            (8 * 100 * 64, 64, 100 * 64)
        );
        assert_eq!(
            (block.k.batch, block.k.row, block.k.head),
            (300 * 2 * 64, 2 * 64, 64)
        );
        assert_eq!((block.lse_batch, block.lse_head), (800, 100));
        assert_eq!(block.scoring.slopes_batch, 8);
        assert_eq!(block.work.counter, 77);
    }

    #[test]
    fn values_and_the_output_have_a_size_of_their_own() {
        let q = Layout::bshd([2, 100, 8, 192]);
        let v = Layout::bhsd([2, 8, 300, 128]);
        let k = Layout::bhsd([2, 8, 300, 192]);
        let call = Call::builder(&q, &k, &v, ElementType::Bf16)
            .build()
            .unwrap();
        let block = block(&call);
        let heads: [i32; 4] = bytemuck::cast(block.heads);
        assert_eq!(heads, [8, 8, 192, 128]);
        assert_eq!((block.k.row, block.v.row), (192, 128));
        assert_eq!((block.q.head, block.out.head), (192, 128));
        assert_eq!(block.scoring.scale, 1.0 / 192_f32.sqrt());
    }

    #[test]
    fn packed_tensors_have_no_batch_stride() {
        let q = Layout::packed(10, 2, 8);
        let call = Call::builder(&q, &q, &q, ElementType::F16)
            .packed(&[0, 4, 10], &[0, 5, 10])
            .build()
            .unwrap();
        let block = block(&call);
        assert_eq!(block.q.batch, 0);
        assert_eq!((block.lse_batch, block.lse_head), (0, 10));
        let lengths = block.sequences;
        assert_eq!(
            (lengths.batch, lengths.query_len, lengths.key_len),
            (2, 6, 5)
        );
        assert_eq!((lengths.query_rows, lengths.key_rows), (10, 10));
    }

    #[test]
    fn one_word_says_what_must_be_read() {
        let layout = Layout::bshd([1, 4, 2, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .build()
            .unwrap();
        let ragged = |set: fn(&mut Slots<u64>)| {
            let mut at = Slots::default();
            set(&mut at);
            forward(&call, &shape(), &at, 0).sequences.ragged
        };
        assert_eq!(ragged(|_| {}), 0);
        assert_eq!(ragged(|at| at[Operand::QueryOffsets] = 64), abi::RAGGED);
        assert_eq!(ragged(|at| at[Operand::QueryLengths] = 64), abi::RAGGED);
        let keys = abi::RAGGED | abi::RAGGED_KEYS;
        assert_eq!(ragged(|at| at[Operand::KeyOffsets] = 64), keys);
        assert_eq!(
            ragged(|at| at[Operand::KeyLengths] = 64),
            keys | abi::READ_AHEAD,
            "nothing but the lengths of keys"
        );
        let queries_too =
            ragged(|at| (at[Operand::KeyLengths], at[Operand::QueryLengths]) = (64, 64));
        assert_eq!(queries_too, keys);
        let in_pages = |at: &Slots<u64>| {
            let pages = abi::Pages::of(64, 1, 16, 4);
            let sequences = forward(&call, &shape(), at, 0).sequences;
            sequences.with_ragged(&pages).ragged
        };
        assert_eq!(in_pages(&Slots::default()), abi::READ_AHEAD);
    }

    #[test]
    fn a_broadcast_bias_has_steps_of_0() {
        let q = Layout::bshd([2, 4, 3, 8]);
        let call = Call::builder(&q, &q, &q, ElementType::F16)
            .layout(Operand::Bias, Layout::bhsd([1, 3, 4, 4]))
            .build()
            .unwrap();
        let scoring = block(&call).scoring;
        let steps = (
            scoring.bias_batch,
            scoring.bias_head,
            scoring.bias_row,
            scoring.bias_key,
        );
        assert_eq!(steps, (0, 16, 4, 1));
    }
}
