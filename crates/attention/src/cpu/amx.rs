//! Products of pairs by the tile registers of Intel's AMX, which stable Rust reaches by inline assembly. See [`pairs`](crate::cpu::pairs).

use std::arch::asm;
use std::sync::OnceLock;

use crate::cpu::engine::BLOCK;

/// Returns true if this process may use tile registers, for `bf16`.
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

    /// The operation of [`Product`](crate::cpu::engine::Product), by tiles.
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
