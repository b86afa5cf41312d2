//! Products of `bf16` numbers by the tile registers of Intel's AMX, which stable Rust reaches by inline assembly.
//!
//! Scores and weights are stored as elsewhere, a lane for each query. Two numbers that follow each other along the sum are a pair,
//! a word of 32 bits: in a row of keys as it is in memory, in queries and values once they are turned, in weights as they are rounded.
//! Products are exact, sums are `f32`; numbers below the normal ones count as 0.

use std::arch::asm;
use std::sync::OnceLock;

use warptile_kernels::tiling::Tiling;

use crate::cpu::block::Blocks;
use crate::cpu::isa::Isa;
use crate::cpu::turn::Turn;
use crate::layout::MAX_HEAD_DIM;

/// Rows and lanes of a product: two tile registers each.
pub(super) const BLOCK: usize = 32;

/// Whether this process may use tile registers, for `bf16`.
pub(super) fn usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
        let there =
            is_x86_feature_detected!("avx512f") && features() & TILES_AND_BF16 == TILES_AND_BF16;
        there && permitted()
    })
}

/// The bits in `edx` of the processor's leaf 7, which every processor with AVX-512 has.
fn features() -> u32 {
    let bits: u32;
    // SAFETY: the instruction changes `eax`, `ebx`, `ecx` and `edx`; `rbx`, which the compiler keeps to itself, is put back.
    unsafe {
        asm!(
            "mov {kept:r}, rbx",
            "cpuid",
            "mov rbx, {kept:r}",
            kept = out(reg) _,
            inout("eax") 7 => _,
            inout("ecx") 0 => _,
            out("edx") bits,
            options(nomem, nostack, preserves_flags),
        );
    }
    bits
}

/// Asks the system for the tile registers, which it hands out to a process on demand.
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: this system call takes two numbers and reads no memory. It changes `rax`, `rcx` and `r11`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// The tile registers of this thread, each 16 rows of 64 bytes, while this lives. The compiler does not know them, so they keep what one
/// piece of assembly leaves there for the next.
pub(super) struct Tiles {
    /// Belongs to this thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Tiles {
    /// # Panics
    /// If they are not [`usable`].
    pub(super) fn new() -> Self {
        assert!(usable());
        #[repr(align(64))]
        struct Shape([u8; 64]);
        let mut shape = Shape([0; 64]);
        // The palette; then each register's bytes of a row, in 16 bits, and its rows.
        shape.0[0] = 1;
        for register in 0..8 {
            shape.0[16 + 2 * register] = 64;
            shape.0[48 + register] = 16;
        }
        // SAFETY: the machine has the instruction, the process the permission; it reads 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
        Tiles {
            _thread: std::marker::PhantomData,
        }
    }

    /// `c = a b`, or `c += a b`, for 32 rows and 32 lanes: `a` has rows of pairs, `b` a row of lanes for each pair, `c` a row of lanes
    /// of numbers for each row of `a`. The number of pairs is a multiple of 16; `stride` counts pairs.
    pub(super) fn product(
        &self,
        (a, stride): (&[u32], usize),
        b: &[u32],
        c: &mut [f32],
        add: bool,
    ) {
        let steps = b.len() / (16 * BLOCK);
        assert!(steps > 0 && b.len() == steps * 16 * BLOCK && c.len() == BLOCK * BLOCK);
        assert!((BLOCK - 1) * stride + 16 * steps <= a.len());
        // SAFETY: `new` was called, so the machine has the instructions. Tiles of `a` are 16 rows of 16 pairs, those of `b` 16 pairs of 16
        // lanes, those of `c` 16 rows of 16 lanes: all within the slices, as was checked.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 2f",
                "tileloadd tmm0, [{c} + {row}*1]",
                "tileloadd tmm1, [{c} + {row}*1 + 64]",
                "tileloadd tmm2, [{c2} + {row}*1]",
                "tileloadd tmm3, [{c2} + {row}*1 + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a2} + {stride}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {a2}, 64",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 3b",
                "tilestored [{c} + {row}*1], tmm0",
                "tilestored [{c} + {row}*1 + 64], tmm1",
                "tilestored [{c2} + {row}*1], tmm2",
                "tilestored [{c2} + {row}*1 + 64], tmm3",
                add = in(reg) u32::from(add),
                a = inout(reg) a.as_ptr() => _,
                a2 = inout(reg) a.as_ptr().add(16 * stride) => _,
                b = inout(reg) b.as_ptr() => _,
                c = in(reg) c.as_mut_ptr(),
                c2 = in(reg) c.as_mut_ptr().add(16 * BLOCK),
                stride = in(reg) 4 * stride,
                row = in(reg) 4 * BLOCK,
                steps = inout(reg) steps => _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the machine has the instruction; nothing uses the registers after this.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Queries, keys and values as tile registers want them, and room for weights.
#[derive(Default)]
pub(super) struct Pairs {
    depth: usize,
    /// For each panel of queries a row of lanes for each pair of components.
    queries: Vec<u32>,
    /// A row of pairs of components for each key of a tile; 0 where there is none.
    keys: Vec<u32>,
    /// A row of pairs of keys for each component; 0 where there is no key.
    values: Vec<u32>,
    /// Numbers on their way.
    words: Vec<u32>,
    /// Weights: a row of lanes for each pair of keys.
    weights: Vec<u32>,
}

/// Keys of a tile.
const KEYS: usize = Blocks::BLOCK_N;

impl Pairs {
    /// Loads queries into panels of [`BLOCK`] lanes.
    pub(super) fn load_queries(&mut self, isa: Isa, rows: &[&[u16]], depth: usize) {
        let pairs = depth / 2;
        self.depth = depth;
        self.words.resize(BLOCK * pairs, 0);
        self.queries
            .resize(rows.len().next_multiple_of(BLOCK) * pairs, 0);
        let panels = self.queries.chunks_exact_mut(BLOCK * pairs);
        for (rows, to) in rows.chunks(BLOCK).zip(panels) {
            fill_rows(&mut self.words, rows, 0, pairs);
            turn(isa, &self.words, pairs, to);
        }
    }

    /// Loads the keys and values of a tile, the first of which is its key `before`.
    pub(super) fn load_tile(&mut self, isa: Isa, k: &[&[u16]], v: &[&[u16]], before: usize) {
        let pairs = self.depth / 2;
        for memory in [&mut self.keys, &mut self.values, &mut self.words] {
            memory.resize(KEYS * pairs, 0);
        }
        fill_rows(&mut self.keys, k, before, pairs);
        // Row j of the words is values 2 j and 2 j + 1, a pair for each component.
        let row = |key: usize| key.checked_sub(before).and_then(|key| v.get(key));
        for (index, to) in self.words.chunks_exact_mut(self.depth).enumerate() {
            pair_rows(row(2 * index).copied(), row(2 * index + 1).copied(), to);
        }
        turn(isa, &self.words, self.depth, &mut self.values);
    }

    /// Products of the queries of a panel with keys: a row of lanes for each key from `first_key` on. Both are whole blocks.
    pub(super) fn scores(&self, tiles: &Tiles, panel: usize, first_key: usize, out: &mut [f32]) {
        let pairs = self.depth / 2;
        let queries = &self.queries[panel * BLOCK * pairs..][..BLOCK * pairs];
        for (block, out) in out.chunks_exact_mut(BLOCK * BLOCK).enumerate() {
            let keys = &self.keys[(first_key + block * BLOCK) * pairs..];
            tiles.product((keys, pairs), queries, out, false);
        }
    }

    /// Adds the values of keys from `first_key` on to the output of a panel, a row of lanes for each component. Keys are whole blocks.
    pub(super) fn add_values(
        &mut self,
        tiles: &Tiles,
        weights: &[f32],
        first_key: usize,
        out: &mut [f32],
    ) {
        self.weights.resize(weights.len() / 2, 0);
        assert!(usable());
        // SAFETY: where tile registers are usable, AVX-512 is.
        unsafe { round_weights(weights, &mut self.weights) };
        for (block, out) in out.chunks_exact_mut(BLOCK * BLOCK).enumerate() {
            let values = &self.values[block * BLOCK * KEYS / 2 + first_key / 2..];
            tiles.product((values, KEYS / 2), &self.weights, out, true);
        }
    }
}

/// Copies rows of numbers, the first to row `before`, and makes all others 0.
fn fill_rows(to: &mut [u32], rows: &[&[u16]], before: usize, pairs: usize) {
    let (start, end) = (before * pairs, (before + rows.len()) * pairs);
    to[..start].fill(0);
    to[end..].fill(0);
    for (row, to) in rows.iter().zip(to[start..end].chunks_exact_mut(pairs)) {
        bytemuck::cast_slice_mut(to).copy_from_slice(row);
    }
}

/// Word `i` is number `i` of both rows; 0 for a row that is not there.
fn pair_rows(first: Option<&[u16]>, second: Option<&[u16]>, to: &mut [u32]) {
    #[target_feature(enable = "avx512f")]
    fn pair(first: &[u16], second: &[u16], to: &mut [u32]) {
        for (to, (first, second)) in to.iter_mut().zip(first.iter().zip(second)) {
            *to = u32::from(*first) | u32::from(*second) << 16;
        }
    }
    const ZEROS: [u16; MAX_HEAD_DIM] = [0; MAX_HEAD_DIM];
    let [first, second] = [first, second].map(|row| row.unwrap_or(&ZEROS));
    assert!(usable());
    // SAFETY: where tile registers are usable, AVX-512 is.
    unsafe { pair(first, second, to) };
}

fn turn(isa: Isa, from: &[u32], columns: usize, to: &mut [u32]) {
    isa.run(Turn {
        from: bytemuck::cast_slice(from),
        columns,
        to: bytemuck::cast_slice_mut(to),
    });
}

/// Rounds weights to pairs of `bf16`: word `i` of row `j` is number `i` of rows `2 j` and `2 j + 1`. To nearest, ties to even; a NaN stays
/// one, since those of `bf16` inputs and of arithmetic have low bits of 0.
#[target_feature(enable = "avx512f")]
fn round_weights(weights: &[f32], to: &mut [u32]) {
    let round = |x: f32| {
        let bits = x.to_bits();
        bits.wrapping_add(0x7fff).wrapping_add(bits >> 16 & 1)
    };
    let (weights, _) = weights.as_chunks::<BLOCK>();
    let (to, _) = to.as_chunks_mut::<BLOCK>();
    for (to, rows) in to.iter_mut().zip(weights.chunks_exact(2)) {
        for (lane, to) in to.iter_mut().enumerate() {
            *to = round(rows[0][lane]) >> 16 | round(rows[1][lane]) & 0xffff_0000;
        }
    }
}
