//! A bounds-checked reader of the few ELF64 structures a cubin's checks need: sections, symbols, flags.
//!
//! Hand-written because these sixty lines of format are all it takes, and a crate of embedded data should not bring a parser
//! to every user.

use std::ops::Range;

/// `e_machine` of every cubin.
pub const EM_CUDA: u16 = 190;

/// Byte order, class and sizes of the ELF64 structures read here (System V ABI, chapter 4).
const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
const SECTION_HEADER_SIZE: usize = 64;
const SYMBOL_SIZE: usize = 24;
const SECTION_TYPE_SYMBOLS: u32 = 2;
const SECTION_TYPE_NO_BITS: u32 = 8;

/// The bytes are not a well-formed little-endian ELF64 file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a readable ELF64 image: {what}; is this a cubin?")]
pub struct ElfError {
    what: &'static str,
}

/// A section of an [`Elf`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Section<'a> {
    /// Section name, such as `.nv.global.init`.
    pub name: &'a str,
    /// Contents; empty for sections without bytes in the file, such as `.nv.shared.*`.
    pub data: &'a [u8],
    kind: u32,
    link: u32,
}

/// A named symbol of an [`Elf`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Symbol<'a> {
    /// Symbol name.
    pub name: &'a str,
    /// Index of the section the symbol is defined in; 0 when undefined.
    pub section: usize,
    /// Offset from the start of that section, as a cubin stores it.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A parsed ELF64 file.
#[derive(Debug, Clone)]
pub struct Elf<'a> {
    machine: u16,
    flags: u32,
    abi_version: u8,
    sections: Vec<Section<'a>>,
}

impl<'a> Elf<'a> {
    /// Reads the header and the section table.
    ///
    /// # Errors
    /// [`ElfError`] if the bytes are not ELF64 or a table reaches past their end. Never panics, for any bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        if !bytes.starts_with(MAGIC) {
            return Err(ElfError {
                what: "it does not start with the ELF64 magic number",
            });
        }
        let table = u64_at(bytes, 40)?;
        let entry_size = usize::from(u16_at(bytes, 58)?);
        let count = usize::from(u16_at(bytes, 60)?);
        let names_index = usize::from(u16_at(bytes, 62)?);
        if count > 0 && entry_size != SECTION_HEADER_SIZE {
            return Err(ElfError {
                what: "section headers do not have the size of ELF64",
            });
        }
        let table = slice(bytes, table, (count * SECTION_HEADER_SIZE) as u64)?;
        let headers = table.chunks_exact(SECTION_HEADER_SIZE);

        let mut sections = Vec::with_capacity(count);
        let mut name_offsets = Vec::with_capacity(count);
        for header in headers {
            let kind = u32_at(header, 4)?;
            let data = if kind == SECTION_TYPE_NO_BITS {
                &[]
            } else {
                slice(bytes, u64_at(header, 24)?, u64_at(header, 32)?)?
            };
            name_offsets.push(u32_at(header, 0)?);
            sections.push(Section {
                name: "",
                data,
                kind,
                link: u32_at(header, 40)?,
            });
        }
        if count > 0 {
            let names = sections
                .get(names_index)
                .map_or(&[][..], |names| names.data);
            for (section, offset) in sections.iter_mut().zip(name_offsets) {
                section.name = string_at(names, offset)?;
            }
        }
        Ok(Self {
            machine: u16_at(bytes, 18)?,
            flags: u32_at(bytes, 48)?,
            abi_version: bytes.get(8).copied().unwrap_or_default(),
            sections,
        })
    }

    /// `e_machine`: [`EM_CUDA`] for a cubin.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// The target a cubin was compiled for, such as `sm_90a`; `None` for an ABI version this reader does not know.
    ///
    /// Read off cubins of NVRTC 12.8: up to ABI version 7 (sm_90 and older) `e_flags` has the number in bits 0 to 7 and
    /// "architecture-specific" in bit 11; in ABI version 8 (sm_100 and newer), bits 8 to 15 and bit 3.
    pub fn target(&self) -> Option<String> {
        let (number, exact) = match self.abi_version {
            7 => (self.flags & 0xff, self.flags & 0x800 != 0),
            8 => (self.flags >> 8 & 0xff, self.flags & 0x8 != 0),
            _ => return None,
        };
        Some(format!("sm_{number}{}", if exact { "a" } else { "" }))
    }

    /// All sections, in file order.
    pub fn sections(&self) -> impl Iterator<Item = &Section<'a>> {
        self.sections.iter()
    }

    /// The section called `name`.
    pub fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// All symbols.
    ///
    /// # Errors
    /// [`ElfError`] if a symbol table or its names are cut short.
    pub fn symbols(&self) -> Result<Vec<Symbol<'a>>, ElfError> {
        let mut symbols = Vec::new();
        for table in &self.sections {
            if table.kind != SECTION_TYPE_SYMBOLS {
                continue;
            }
            let names = self.sections.get(table.link as usize).ok_or(ElfError {
                what: "a symbol table names a section that does not exist",
            })?;
            for symbol in table.data.chunks_exact(SYMBOL_SIZE) {
                symbols.push(Symbol {
                    name: string_at(names.data, u32_at(symbol, 0)?)?,
                    section: usize::from(u16_at(symbol, 6)?),
                    offset: u64_at(symbol, 8)?,
                    size: u64_at(symbol, 16)?,
                });
            }
        }
        Ok(symbols)
    }

    /// The bytes of the object called `name`, or `None` if no section defines it.
    ///
    /// # Errors
    /// [`ElfError`] if the symbol table is damaged or the symbol reaches past its section.
    pub fn object(&self, name: &str) -> Result<Option<&'a [u8]>, ElfError> {
        let symbols = self.symbols()?;
        let defined = symbols
            .iter()
            .find(|symbol| symbol.name == name && symbol.section != 0);
        let Some(symbol) = defined else {
            return Ok(None);
        };
        let section = self.sections.get(symbol.section).ok_or(ElfError {
            what: "a symbol is defined in a section that does not exist",
        })?;
        slice(section.data, symbol.offset, symbol.size).map(Some)
    }
}

fn range(start: u64, len: u64) -> Option<Range<usize>> {
    let start = usize::try_from(start).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    Some(start..end)
}

fn slice(bytes: &[u8], start: u64, len: u64) -> Result<&[u8], ElfError> {
    range(start, len)
        .and_then(|range| bytes.get(range))
        .ok_or(ElfError {
            what: "a table reaches past the end of the file",
        })
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], ElfError> {
    let field = slice(bytes, offset as u64, N as u64)?;
    let mut array = [0; N];
    array.copy_from_slice(field);
    Ok(array)
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, ElfError> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, ElfError> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, ElfError> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

fn string_at(table: &[u8], offset: u32) -> Result<&str, ElfError> {
    let error = ElfError {
        what: "a name lies outside its string table",
    };
    let tail = table.get(offset as usize..).ok_or(error.clone())?;
    let end = tail
        .iter()
        .position(|&byte| byte == 0)
        .ok_or(error.clone())?;
    std::str::from_utf8(&tail[..end]).map_err(|_| error)
}
