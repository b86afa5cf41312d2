//! The parameter block every kernel takes: the host's copy of `kernels/params.cuh`.

use bytemuck::{Pod, Zeroable};

use crate::layout::Layout;
use crate::mask::Align;
use crate::problem::{AlibiShape, Problem};

/// `window_left` or `window_right` of an unlimited side.
///
/// Lengths are at most [`MAX_LEN`](crate::MAX_LEN), the same number, so any larger window reaches over everything too.
pub const WINDOW_UNLIMITED: i32 = 1 << 30;

/// Distances in elements between neighbours along the dimensions of a tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Strides {
    /// Between batch entries; 0 for packed tensors.
    pub batch: i64,
    /// Between rows.
    pub row: i64,
    /// Between heads.
    pub head: i64,
}

impl From<&Layout> for Strides {
    /// A dimension that is never stepped along gets a stride of 0, whatever the layout says.
    fn from(layout: &Layout) -> Self {
        let stride = |dimension: usize| {
            if layout.shape[dimension] > 1 {
                // Fits: a stride that is stepped along lies below the layout's validated extent.
                layout.strides[dimension] as i64
            } else {
                0
            }
        };
        Strides {
            batch: stride(0),
            row: stride(1),
            head: stride(2),
        }
    }
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The argument of every kernel. Members, order and meaning are those of `kernels/params.cuh`; device addresses
        /// are plain integers here.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
        pub struct AttentionParams {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl AttentionParams {
            /// Name and byte offset of every member, in order of declaration.
            pub const MEMBERS: &'static [(&'static str, usize)] = &[
                $((stringify!($name), std::mem::offset_of!(AttentionParams, $name)),)*
            ];
        }
    };
}

params! {
    /// Address of q.
    q: u64,
    /// Address of k.
    k: u64,
    /// Address of v.
    v: u64,
    /// Address of out.
    out: u64,
    /// Address of the lse; 0 when not wanted.
    lse: u64,
    /// Address of q's row offsets; 0 for dense tensors.
    cu_seqlens_q: u64,
    /// Address of k's and v's row offsets; 0 for dense tensors.
    cu_seqlens_k: u64,
    /// Address of the slopes; 0 for no ALiBi.
    alibi_slopes: u64,
    /// Address of the work queue of persistent kernels; 0 for the others.
    tile_counter: u64,
    /// Strides of q.
    q_stride: Strides,
    /// Strides of k.
    k_stride: Strides,
    /// Strides of v.
    v_stride: Strides,
    /// Strides of out.
    out_stride: Strides,
    /// Distance in the lse between batch entries; 0 for packed tensors.
    lse_batch_stride: i64,
    /// Distance in the lse between heads.
    lse_head_stride: i64,
    /// Distance between the slopes of batch entries; 0 when they share them.
    alibi_batch_stride: i64,
    /// Sequences.
    batch: i32,
    /// Query heads.
    heads: i32,
    /// Key/value heads.
    kv_heads: i32,
    /// Head size.
    head_dim: i32,
    /// Queries of a sequence; packed: of the longest.
    query_len: i32,
    /// Keys of a sequence; packed: of the longest.
    key_len: i32,
    /// `ceil(query_len / BLOCK_M)`.
    query_tiles: i32,
    /// Keys visible before the diagonal.
    window_left: i32,
    /// Keys visible after the diagonal.
    window_right: i32,
    /// 1 if the diagonal is top-left aligned, else 0.
    align_top_left: i32,
    /// Factor of `q.k`.
    scale: f32,
    /// Bound of the scores; 0 for none.
    softcap: f32,
}

impl AttentionParams {
    /// Everything about a problem but the addresses, which stay 0, for a kernel with `block_m` query rows per tile.
    #[must_use]
    pub fn new(problem: &Problem, block_m: usize) -> Self {
        let bounds = problem.mask().bounds();
        let window = |side: Option<u32>| {
            side.and_then(|keys| i32::try_from(keys).ok())
                .map_or(WINDOW_UNLIMITED, |keys| keys.min(WINDOW_UNLIMITED))
        };
        // Counts fit 32 bits: the problem has checked them against MAX_LEN.
        let count = |n: usize| n as i32;
        let rows = problem.q().rows();
        AttentionParams {
            q_stride: problem.q().into(),
            k_stride: problem.k().into(),
            v_stride: problem.v().into(),
            out_stride: problem.out().into(),
            lse_batch_stride: if problem.is_packed() {
                0
            } else {
                (problem.heads() * rows) as i64
            },
            lse_head_stride: rows as i64,
            alibi_batch_stride: match problem.alibi() {
                Some(AlibiShape::PerBatchHead) => problem.heads() as i64,
                _ => 0,
            },
            batch: count(problem.batch()),
            heads: count(problem.heads()),
            kv_heads: count(problem.kv_heads()),
            head_dim: count(problem.head_dim()),
            query_len: count(problem.query_len()),
            key_len: count(problem.key_len()),
            query_tiles: count(problem.query_len().div_ceil(block_m)),
            window_left: window(bounds.left),
            window_right: window(bounds.right),
            align_top_left: i32::from(bounds.align == Align::TopLeft),
            scale: problem.scale(),
            softcap: problem.softcap().unwrap_or(0.0),
            ..AttentionParams::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;
    use crate::mask::Mask;

    /// Members of `struct AttentionParams` in the C++ header: name and size in bytes.
    fn header_members() -> Vec<(String, usize)> {
        let path = warptile_check::repository_file("kernels/params.cuh");
        let header = std::fs::read_to_string(path).unwrap();
        let body = header
            .split_once("struct AttentionParams {")
            .and_then(|(_, rest)| rest.split_once("};"))
            .unwrap()
            .0;
        body.lines()
            .filter_map(|line| line.split_once(';'))
            .map(|(declaration, _)| {
                let (kind, name) = declaration.trim().rsplit_once(' ').unwrap();
                let size = match kind {
                    pointer if pointer.ends_with('*') => 8,
                    "Strides" => 24,
                    "long long" => 8,
                    "int" | "float" => 4,
                    other => panic!("unknown type {other} in params.cuh"),
                };
                (name.to_owned(), size)
            })
            .collect()
    }

    #[test]
    fn members_are_those_of_the_header_at_the_same_offsets() {
        let mut offset = 0;
        let mut expected = Vec::new();
        for (name, size) in header_members() {
            // Natural alignment adds no padding: 8-byte members come first.
            assert_eq!(offset % size.min(8), 0, "{name}");
            expected.push((name, offset));
            offset += size;
        }
        let ours: Vec<(String, usize)> = AttentionParams::MEMBERS
            .iter()
            .map(|&(name, offset)| (name.to_owned(), offset))
            .collect();
        assert_eq!(ours, expected);
        assert_eq!(size_of::<AttentionParams>(), offset);
        assert_eq!(size_of::<AttentionParams>(), 240);
    }

    #[test]
    fn windows_are_capped_at_unlimited() {
        let layout = Layout::bshd([1, 4, 2, 8]);
        let window = |mask: Mask| {
            let problem = Problem::builder(&layout, &layout, &layout, ElementType::F32)
                .mask(mask)
                .build()
                .unwrap();
            let params = AttentionParams::new(&problem, 16);
            (
                params.window_left,
                params.window_right,
                params.align_top_left,
            )
        };
        let all = WINDOW_UNLIMITED;
        assert_eq!(window(Mask::none()), (all, all, 0));
        assert_eq!(window(Mask::causal()), (all, 0, 0));
        let top_left = Mask::Causal {
            align: Align::TopLeft,
        };
        assert_eq!(window(top_left), (all, 0, 1));
        assert_eq!(window(Mask::window(3, u32::MAX)), (3, all, 0));
        assert_eq!(window(Mask::window(1 << 30, 7)), (all, 7, 0));
    }

    #[test]
    fn dense_strides_tiles_and_lse() {
        let q = Layout::bhsd([2, 100, 8, 64]);
        let k = Layout::bshd([2, 300, 2, 64]);
        let problem = Problem::builder(&q, &k, &k, ElementType::F16)
            .alibi(AlibiShape::PerBatchHead)
            .build()
            .unwrap();
        let params = AttentionParams::new(&problem, 32);
        assert_eq!(
            params.q_stride,
            Strides {
                batch: 8 * 100 * 64,
                row: 64,
                head: 100 * 64
            }
        );
        assert_eq!(
            params.k_stride,
            Strides {
                batch: 300 * 2 * 64,
                row: 2 * 64,
                head: 64
            }
        );
        assert_eq!(params.query_tiles, 4);
        assert_eq!(
            (params.lse_batch_stride, params.lse_head_stride),
            (800, 100)
        );
        assert_eq!(params.alibi_batch_stride, 8);
        assert_eq!(params.softcap, 0.0);
    }

    #[test]
    fn packed_tensors_have_no_batch_stride() {
        let q = Layout::packed(10, 2, 8);
        let problem = Problem::builder(&q, &q, &q, ElementType::F16)
            .packed(&[0, 4, 10], &[0, 5, 10])
            .build()
            .unwrap();
        let params = AttentionParams::new(&problem, 16);
        assert_eq!(params.q_stride.batch, 0);
        assert_eq!((params.lse_batch_stride, params.lse_head_stride), (0, 10));
        assert_eq!((params.batch, params.query_len, params.key_len), (2, 6, 5));
    }
}
