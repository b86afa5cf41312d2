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
use crate::cpu::memory::Memory;
use crate::cpu::turn::{Prefetch, Turn};
use crate::element::Element;
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

    /// `c = a b`, or `c += a b`, for 32 rows and 32 lanes: `a` has rows of pairs in tiles, one after the other as a step needs them: the
    /// first 16 pairs of the first 16 rows, the same of the other rows, the next 16 pairs. `b` has a row of lanes for each pair, `c` a row
    /// of lanes of numbers for each row of `a`. The number of pairs is a multiple of 16.
    pub(super) fn product(&self, a: &[u32], b: &[u32], c: &mut [f32], add: bool) {
        let steps = b.len() / (16 * BLOCK);
        assert!(steps > 0 && b.len() == steps * 16 * BLOCK && c.len() == BLOCK * BLOCK);
        assert!(a.len() >= b.len());
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
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {line}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 3b",
                "tilestored [{c} + {row}*1], tmm0",
                "tilestored [{c} + {row}*1 + 64], tmm1",
                "tilestored [{c2} + {row}*1], tmm2",
                "tilestored [{c2} + {row}*1 + 64], tmm3",
                add = in(reg) u32::from(add),
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                c = in(reg) c.as_mut_ptr(),
                c2 = in(reg) c.as_mut_ptr().add(16 * BLOCK),
                line = in(reg) 64_usize,
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
    /// Components of a query or key.
    depth: usize,
    /// Components of a value.
    value_depth: usize,
    /// For each panel of queries a row of lanes for each pair of components.
    queries: Memory<u32>,
    /// The keys of a tile in blocks of [`BLOCK`], each as [`Tiles::product`] takes rows of pairs of components; 0 where there is no key.
    keys: Memory<u32>,
    /// The components of values in blocks of [`BLOCK`], likewise, of pairs of keys.
    values: Memory<u32>,
    /// Numbers on their way.
    words: Memory<u32>,
    /// Weights: a row of lanes for each pair of keys.
    weights: Memory<u32>,
}

/// Keys of a tile.
const KEYS: usize = Blocks::BLOCK_N;

/// Rows that are fetched ahead together.
const AHEAD: usize = 4;

/// Words of a tile register: 16 rows of 16.
const TILE: usize = 256;

/// Where the tile of a row and a pair is in blocks of rows of so many pairs, both multiples of 16.
fn tile_at(row: usize, pair: usize, pairs: usize) -> usize {
    row / BLOCK * BLOCK * pairs + (pair / 16 * 2 + row % BLOCK / 16) * TILE
}

impl Pairs {
    /// Loads queries into panels of [`BLOCK`] lanes. `depths`: components of a query, and of a value.
    pub(super) fn load_queries<T: Element>(&mut self, isa: Isa, rows: &[&[T]], depths: [usize; 2]) {
        [self.depth, self.value_depth] = depths;
        let pairs = self.depth / 2;
        self.words.resize(BLOCK * pairs);
        self.queries
            .resize(rows.len().next_multiple_of(BLOCK) * pairs);
        let panels = self.queries.chunks_exact_mut(BLOCK * pairs);
        for (rows, to) in rows.chunks(BLOCK).zip(panels) {
            let (words, rest) = self.words.split_at_mut(rows.len() * pairs);
            for (row, to) in rows.iter().zip(words.chunks_exact_mut(pairs)) {
                bytemuck::cast_slice_mut(to).copy_from_slice(halves(row));
            }
            rest.fill(0);
            turn(isa, [BLOCK, pairs], (&self.words, pairs), (to, BLOCK));
        }
    }

    /// Loads the keys and values of a tile, the first of which is its key `before`. Meanwhile those that come next, if they do, are
    /// brought nearer.
    pub(super) fn load_tile<'a, T: Element>(
        &mut self,
        isa: Isa,
        k: &[&'a [T]],
        v: &[&'a [T]],
        before: usize,
        [next_k, next_v]: [&[&[T]]; 2],
    ) {
        let pairs = self.depth / 2;
        self.keys.resize(KEYS * pairs);
        for memory in [&mut self.values, &mut self.words] {
            memory.resize(KEYS * self.value_depth / 2);
        }
        let row = |rows: &[&'a [T]], key: usize| {
            let row = key.checked_sub(before).and_then(|key| rows.get(key));
            row.map_or(&ZEROS[..], |row| halves(row))
        };
        // A few rows at a time: a core waits when it has asked for too many.
        let fetch = |rows: &[&[T]], first: usize| {
            let rows = rows.get(first..).unwrap_or(&[]);
            isa.run(Prefetch(&rows[..rows.len().min(AHEAD)]));
        };
        for key in 0..KEYS {
            if key % AHEAD == 0 {
                fetch(next_k, key);
            }
            for (index, piece) in row(k, key)[..self.depth].chunks_exact(32).enumerate() {
                let to = tile_at(key, 16 * index, pairs) + key % 16 * 16;
                bytemuck::cast_slice_mut(&mut self.keys[to..to + 16]).copy_from_slice(piece);
            }
        }
        // Row j of the words is values 2 j and 2 j + 1, a pair for each component.
        for (index, to) in self.words.chunks_exact_mut(self.value_depth).enumerate() {
            if 2 * index % AHEAD == 0 {
                fetch(next_v, 2 * index);
            }
            pair_rows(row(v, 2 * index), row(v, 2 * index + 1), to);
        }
        for pair in (0..KEYS / 2).step_by(16) {
            for component in (0..self.value_depth).step_by(16) {
                let from = &self.words[pair * self.value_depth + component..];
                let to = &mut self.values[tile_at(component, pair, KEYS / 2)..][..TILE];
                turn(isa, [16, 16], (from, self.value_depth), (to, 16));
            }
        }
    }

    /// Products of the queries of a panel with keys: a row of lanes for each key from `first_key` on. Both are whole blocks.
    pub(super) fn scores(&self, tiles: &Tiles, panel: usize, first_key: usize, out: &mut [f32]) {
        let pairs = self.depth / 2;
        let queries = &self.queries[panel * BLOCK * pairs..][..BLOCK * pairs];
        let keys = self.keys[first_key * pairs..].chunks_exact(BLOCK * pairs);
        for (keys, out) in keys.zip(out.chunks_exact_mut(BLOCK * BLOCK)) {
            tiles.product(keys, queries, out, false);
        }
    }

    /// Room for the weights of so many keys and a panel.
    pub(super) fn weights(&mut self, keys: usize) -> &mut [u32] {
        self.weights.resize(keys / 2 * BLOCK);
        &mut self.weights
    }

    /// Adds the values of keys from `first_key` on, of which there are weights, to the output of a panel, a row of lanes for each
    /// component. Keys are whole blocks.
    pub(super) fn add_values(&self, tiles: &Tiles, first_key: usize, out: &mut [f32]) {
        let values = self.values.chunks_exact(BLOCK * KEYS / 2);
        for (values, out) in values.zip(out.chunks_exact_mut(BLOCK * BLOCK)) {
            let values = &values[first_key / 2 * BLOCK..];
            tiles.product(values, &self.weights, out, true);
        }
    }
}

/// A row that is not there.
const ZEROS: [u16; MAX_HEAD_DIM] = [0; MAX_HEAD_DIM];

/// The bits of 16-bit numbers.
fn halves<T: Element>(row: &[T]) -> &[u16] {
    bytemuck::cast_slice(row)
}

/// Word `i` is number `i` of both rows.
fn pair_rows(first: &[u16], second: &[u16], to: &mut [u32]) {
    #[target_feature(enable = "avx512f")]
    fn pair(first: &[u16], second: &[u16], to: &mut [u32]) {
        for (to, (first, second)) in to.iter_mut().zip(first.iter().zip(second)) {
            *to = u32::from(*first) | u32::from(*second) << 16;
        }
    }
    assert!(usable());
    // SAFETY: where tile registers are usable, AVX-512 is.
    unsafe { pair(first, second, to) };
}

/// Turns a matrix of words with so many rows and columns, from rows so far apart.
fn turn(
    isa: Isa,
    size: [usize; 2],
    (from, from_stride): (&[u32], usize),
    (to, to_stride): (&mut [u32], usize),
) {
    isa.run(Turn {
        size,
        from: bytemuck::cast_slice(from),
        from_stride,
        to: bytemuck::cast_slice_mut(to),
        to_stride,
    });
}
