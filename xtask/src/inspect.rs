//! Facts about a compiled image: from the compiler's log, from the ELF, and from the disassembly.

use std::path::Path;
use std::process::Command;

use warptile_spec::elf::{Elf, ElfError};

/// The messages of NVRTC and ptxas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogReport {
    /// Lines that warn.
    pub warnings: Vec<String>,
    /// ptxas's numbered remarks, such as C7508 (setmaxnreg ignored) and C7510 (wgmma serialized). ptxas files them under
    /// "info", but each says that the machine code is not what the source asked for.
    pub advisories: Vec<String>,
    /// Registers per thread.
    pub registers: u32,
    /// Largest stack frame of any function, in bytes.
    pub stack_bytes: u32,
    /// Spill stores of all functions, in bytes.
    pub spill_store_bytes: u32,
    /// Spill loads of all functions, in bytes.
    pub spill_load_bytes: u32,
    /// Static shared memory in bytes.
    pub static_shared_bytes: u32,
    /// Entry functions, in the order compiled.
    pub entries: Vec<String>,
}

impl LogReport {
    /// Reads a log made with `--ptxas-options=-v`.
    pub fn parse(log: &str) -> Self {
        let mut report = Self::default();
        for line in log.lines() {
            let lower = line.to_ascii_lowercase();
            if lower.contains("warning") && !lower.starts_with("remark:") {
                report.warnings.push(line.trim().to_owned());
            } else if line.contains(": (C") || lower.contains("performance loss") {
                report.advisories.push(line.trim().to_owned());
            } else if line.contains("Compiling entry function") {
                report
                    .entries
                    .extend(line.split('\'').nth(1).map(str::to_owned));
            } else if line.contains("bytes stack frame") {
                report.stack_bytes = report
                    .stack_bytes
                    .max(number_before(line, " bytes stack frame"));
                report.spill_store_bytes += number_before(line, " bytes spill stores");
                report.spill_load_bytes += number_before(line, " bytes spill loads");
            } else if line.contains(": Used ") {
                report.registers = report.registers.max(number_before(line, " registers"));
                report.static_shared_bytes = report
                    .static_shared_bytes
                    .max(number_before(line, " bytes smem"));
                report.stack_bytes = report
                    .stack_bytes
                    .max(number_before(line, " bytes cumulative stack size"));
            }
        }
        report
    }
}

/// The number that ends where `unit` starts; 0 if the line does not mention the unit.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some((before, _)) = line.split_once(unit) else {
        return 0;
    };
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_default()
}

/// Size in bytes of each parameter the entry takes, by the ELF's own account.
///
/// `.nv.info.<entry>` is a list of attributes: format byte, attribute byte, then a 16-bit value, or for format 4 a 16-bit
/// length and that many bytes. NVIDIA does not document it; read off cubins of NVRTC 12.8 for sm_80 to sm_120, attribute
/// 0x17 (in nvdisasm's words EIATTR_KPARAM_INFO) describes one parameter: 32-bit index, 16-bit ordinal, 16-bit offset, and
/// 32 bits with its size in the upper 14. (Attribute 0x19 has the size of all parameters, but with the padding before
/// one whose alignment the start of the parameter space does not have, such as a tensor map's 64 bytes.)
///
/// # Errors
/// [`ElfError`] if the bytes are not an ELF.
pub fn parameter_sizes(cubin: &[u8], entry: &str) -> Result<Vec<u32>, ElfError> {
    const FORMAT_SIZED: u8 = 4;
    const KPARAM_INFO: u8 = 0x17;
    const SIZE_SHIFT: u32 = 18;

    let elf = Elf::parse(cubin)?;
    let section = elf.section(&format!(".nv.info.{entry}"));
    let mut rest = section.map_or(&[][..], |section| section.data);
    let mut sizes = Vec::new();
    while let [format, attribute, low, high, tail @ ..] = rest {
        if *format != FORMAT_SIZED {
            rest = tail;
            continue;
        }
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        if let (&KPARAM_INFO, Some([.., a, b, c, d])) = (attribute, tail.get(..len)) {
            sizes.push(u32::from_le_bytes([*a, *b, *c, *d]) >> SIZE_SHIFT);
        }
        rest = tail.get(len..).unwrap_or_default();
    }
    // The list has the last parameter first.
    sizes.reverse();
    Ok(sizes)
}

/// Returns true if the ELF has machine code under the entry's name.
///
/// # Errors
/// [`ElfError`] if the bytes are not an ELF.
pub fn has_entry(cubin: &[u8], entry: &str) -> Result<bool, ElfError> {
    Ok(Elf::parse(cubin)?
        .object(entry)?
        .is_some_and(|code| !code.is_empty()))
}

/// Instructions of interest in a disassembly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SassCounts {
    /// `HMMA`: wmma, mma.sync.
    pub hmma: u32,
    /// `HGMMA`: wgmma.
    pub hgmma: u32,
    /// `USETMAXREG`: setmaxnreg.
    pub usetmaxreg: u32,
    /// `ACQBULK`: griddepcontrol.wait.
    pub acqbulk: u32,
    /// Groups of `HGMMA` with as many `R2UR` between them, or more: each product waits for a descriptor out of ordinary registers.
    pub waiting_groups: u32,
}

impl SassCounts {
    /// Disassembles a cubin file and counts.
    ///
    /// # Errors
    /// A sentence saying why `nvdisasm` did not run.
    pub fn of_file(nvdisasm: &Path, cubin: &Path) -> Result<Self, String> {
        let output = Command::new(nvdisasm)
            .args(["--print-code", "--no-dataflow"])
            .arg(cubin)
            .output()
            .map_err(|error| format!("cannot run {}: {error}", nvdisasm.display()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(format!("nvdisasm: {}", message.trim()));
        }
        Ok(Self::of_text(&String::from_utf8_lossy(&output.stdout)))
    }

    fn of_text(sass: &str) -> Self {
        let mut counts = Self::default();
        // Products of the group in hand, and R2UR since its first.
        let (mut products, mut moves) = (0, 0);
        for line in sass.lines() {
            // `        /*0070*/              @!P0 HMMA.16816.F32 R4, R8, R12, R4 ;`
            let Some((_, instruction)) = line.split_once("*/") else {
                continue;
            };
            let opcode = instruction
                .split_whitespace()
                .find(|word| !word.starts_with('@'))
                .and_then(|word| word.split(['.', ';']).next());
            match opcode {
                Some("HMMA") => counts.hmma += 1,
                Some("HGMMA") => {
                    counts.hgmma += 1;
                    products += 1;
                    moves = if products == 1 { 0 } else { moves };
                    // The last one of a group.
                    if instruction.contains("gsb0") {
                        counts.waiting_groups += u32::from(products > 1 && moves >= products);
                        products = 0;
                    }
                }
                Some("R2UR") => moves += 1,
                Some("USETMAXREG") => counts.usetmaxreg += 1,
                Some("ACQBULK") => counts.acqbulk += 1,
                _ => {}
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_report_is_read() {
        let report = LogReport::parse(
            "ptxas info    : 380 bytes gmem, 96 bytes cmem[4]\n\
             ptxas info    : Compiling entry function 'warptile_x' for 'sm_80'\n\
             ptxas info    : Function properties for warptile_x\n\
             ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
             ptxas info    : Used 254 registers, used 1 barriers, 24 bytes cumulative stack size, 1024 bytes smem, 592 bytes cmem[0]\n",
        );
        assert_eq!(
            report,
            LogReport {
                registers: 254,
                stack_bytes: 24,
                spill_store_bytes: 8,
                spill_load_bytes: 12,
                static_shared_bytes: 1024,
                entries: vec!["warptile_x".to_owned()],
                ..LogReport::default()
            }
        );
    }

    #[test]
    fn warnings_and_numbered_remarks_are_collected() {
        let report = LogReport::parse(
            "a.cu(1): warning #177-D: variable \"x\" was declared but never referenced\n\
             Remark: The warnings can be suppressed with \"-diag-suppress <warning-number>\"\n\
             ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.\n",
        );
        assert_eq!(report.warnings.len(), 1);
        assert_eq!(report.advisories.len(), 1);
    }

    #[test]
    fn only_opcodes_are_counted() {
        let counts = SassCounts::of_text(
            "        /*0070*/                   HMMA.16816.F32 R4, R8, R12, R4 ;\n\
                     /*0080*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n\
                     /*0090*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;\n\
                     /*00a0*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;\n\
                     /*00b0*/                   ACQBULK ;\n\
                     /*00c0*/                   R2UR UR4, R2 ;\n\
                     /*00d0*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0 ;\n\
             .text.HMMA_kernel:\n",
        );
        assert_eq!(
            counts,
            SassCounts {
                hmma: 2,
                hgmma: 2,
                usetmaxreg: 1,
                acqbulk: 1,
                waiting_groups: 0,
            }
        );
    }

    #[test]
    fn products_that_wait_for_descriptors_are_found() {
        let group = |moves: &str| {
            let product =
                |more: &str| format!("/*0*/ HGMMA.64x128x16.F32 R24, gdesc[UR4], R24{more} ;\n");
            let text = [
                "/*0*/ R2UR UR4, R2 ;\n/*0*/ R2UR UR5, R3 ;\n",
                &product(""),
                moves,
                &product(", gsb0"),
            ];
            SassCounts::of_text(&text.concat()).waiting_groups
        };
        // What comes before the first product is no matter.
        assert_eq!(group(""), 0);
        assert_eq!(group("/*0*/ R2UR UR4, R2 ;\n"), 0);
        assert_eq!(
            group("/*0*/ R2UR UR4, R2 ;\n/*0*/ @!P0 R2UR UR5, R3 ;\n"),
            1
        );
    }
}
