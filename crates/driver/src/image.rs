//! Checks that the driver does not make: it is given a module image without its length.

use std::borrow::Cow;

use crate::error::{DriverError, Result};

/// First bytes of an ELF file, which a cubin is.
const ELF: &[u8] = b"\x7fELF";
/// First bytes of a 64-bit little-endian ELF file of version 1.
const ELF64: &[u8] = b"\x7fELF\x02\x01\x01";
/// First bytes of a fat binary, little-endian `0xBA55ED50`.
const FAT_BINARY: &[u8] = &[0x50, 0xED, 0x55, 0xBA];

/// Makes sure that the driver will not read past the end of the image, going by the sizes the
/// image itself states. PTX is text and gets the NUL it must end in.
pub(crate) fn bounded(image: &[u8]) -> Result<Cow<'_, [u8]>> {
    let refuse = |reason| Err(DriverError::BadImage { reason });
    if image.is_empty() {
        return refuse("it is empty");
    }
    if image.starts_with(ELF) {
        // With another class or byte order all fields are elsewhere.
        if !image.starts_with(ELF64) {
            return refuse("it is an ELF file, but not a 64-bit little-endian one, as cubins are");
        }
        return match elf_end(image) {
            Some(end) if end <= image.len() as u64 => Ok(Cow::Borrowed(image)),
            _ => refuse("it is a cubin (ELF) that is cut off or whose headers are damaged"),
        };
    }
    if image.starts_with(FAT_BINARY) {
        return match fat_binary_end(image) {
            Some(end) if end <= image.len() as u64 => Ok(Cow::Borrowed(image)),
            _ => refuse("it is a fat binary that ends before its header says"),
        };
    }
    // Anything else can only be PTX. Its first bytes are blanks, comments or directives.
    let text = image.strip_suffix(b"\0").unwrap_or(image);
    if text.contains(&0) || std::str::from_utf8(text).is_err() {
        return refuse("it is neither a cubin, nor a fat binary, nor PTX text");
    }
    if text.len() < image.len() {
        return Ok(Cow::Borrowed(image));
    }
    let mut terminated = Vec::with_capacity(image.len() + 1);
    terminated.extend_from_slice(image);
    terminated.push(0);
    Ok(Cow::Owned(terminated))
}

/// Where the last thing that a 64-bit little-endian ELF's headers mention ends; `None` if that can't be told, as a table does not fit
/// or its entries do not have the size of their kind.
fn elf_end(image: &[u8]) -> Option<u64> {
    // Offsets in the ELF header: e_phoff 32, e_shoff 40, e_phentsize 54, e_phnum 56,
    // e_shentsize 58, e_shnum 60; in a section header: sh_type 4, sh_offset 24, sh_size 32,
    // sh_info 44; in a program header: p_offset 8, p_filesz 32.
    const HEADER: u64 = 64;
    const SECTION: u16 = 64;
    const SEGMENT: u16 = 56;
    const SHT_NOBITS: u32 = 8;
    let sections = u64_at(image, 40)?;
    let first_section = |field: u64| usize::try_from(sections.checked_add(field)?).ok();
    // A count beyond 16 bits is in the first section header.
    let section_count = match u16_at(image, 60)? {
        0 if sections != 0 => u64_at(image, first_section(32)?)?,
        count => u64::from(count),
    };
    let segment_count = match u16_at(image, 56)? {
        u16::MAX => u64::from(u32_at(image, first_section(44)?)?),
        count => u64::from(count),
    };
    let sections = table(image, sections, section_count, u16_at(image, 58)?, SECTION)?;
    let segments = table(
        image,
        u64_at(image, 32)?,
        segment_count,
        u16_at(image, 54)?,
        SEGMENT,
    )?;
    let mut end = HEADER;
    for section in sections.chunks_exact(SECTION.into()) {
        if u32_at(section, 4)? != SHT_NOBITS {
            end = end.max(u64_at(section, 24)?.checked_add(u64_at(section, 32)?)?);
        }
    }
    for segment in segments.chunks_exact(SEGMENT.into()) {
        end = end.max(u64_at(segment, 8)?.checked_add(u64_at(segment, 32)?)?);
    }
    Some(end)
}

/// The bytes of a table whose entries have the size `needed`, if it has any.
fn table(image: &[u8], start: u64, count: u64, size: u16, needed: u16) -> Option<&[u8]> {
    if count == 0 {
        return Some(&[]);
    }
    let len = count.checked_mul(needed.into())?;
    let range = usize::try_from(start).ok()?..usize::try_from(start.checked_add(len)?).ok()?;
    image.get(range).filter(|_| size == needed)
}

/// Where a fat binary ends by its header: magic (4 bytes), version (2), header size (2), payload size (8). `None` if the header
/// does not hold its own fields.
fn fat_binary_end(image: &[u8]) -> Option<u64> {
    const FIELDS: u16 = 16;
    let header = u16_at(image, 6).filter(|size| *size >= FIELDS)?;
    u64_at(image, 8)?.checked_add(header.into())
}

fn bytes_at<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    bytes_at(image, at).map(u16::from_le_bytes)
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    bytes_at(image, at).map(u32::from_le_bytes)
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    bytes_at(image, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF of one 32-byte section after the header, then the section table.
    fn small_elf() -> Vec<u8> {
        let mut image = vec![0; 64 + 32 + 64];
        image[..7].copy_from_slice(ELF64);
        image[40..48].copy_from_slice(&96_u64.to_le_bytes());
        image[58..60].copy_from_slice(&64_u16.to_le_bytes());
        image[60..62].copy_from_slice(&1_u16.to_le_bytes());
        image[96 + 24..96 + 32].copy_from_slice(&64_u64.to_le_bytes());
        image[96 + 32..96 + 40].copy_from_slice(&32_u64.to_le_bytes());
        image
    }

    #[test]
    fn a_whole_elf_passes_and_every_truncation_of_it_is_refused() {
        let image = small_elf();
        assert!(bounded(&image).is_ok());
        for len in ELF.len()..image.len() {
            assert!(bounded(&image[..len]).is_err(), "cut to {len} bytes");
        }
    }

    #[test]
    fn an_elf_section_that_points_outside_is_refused() {
        let mut image = small_elf();
        image[96 + 32..96 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(bounded(&image).is_err());
    }

    #[test]
    fn an_elf_segment_that_points_outside_is_refused() {
        // One program header after everything else: p_offset at 8, p_filesz at 32.
        let mut image = small_elf();
        let at = image.len();
        image.resize(at + 56, 0);
        image[32..40].copy_from_slice(&(at as u64).to_le_bytes());
        image[54..56].copy_from_slice(&56_u16.to_le_bytes());
        image[56..58].copy_from_slice(&1_u16.to_le_bytes());
        image[at + 8..at + 16].copy_from_slice(&64_u64.to_le_bytes());
        image[at + 32..at + 40].copy_from_slice(&32_u64.to_le_bytes());
        assert!(bounded(&image).is_ok());
        let last = image.len() as u64 - 64;
        image[at + 32..at + 40].copy_from_slice(&last.to_le_bytes());
        assert!(bounded(&image).is_ok());
        image[at + 32..at + 40].copy_from_slice(&(last + 1).to_le_bytes());
        assert!(bounded(&image).is_err());
        image[at + 32..at + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(bounded(&image).is_err());
    }

    #[test]
    fn an_elf_of_another_class_byte_order_or_version_is_refused() {
        for at in 4..7 {
            for value in (0..=u8::MAX).filter(|value| *value != ELF64[at]) {
                let mut image = small_elf();
                image[at] = value;
                assert!(bounded(&image).is_err(), "{value} at {at}");
            }
        }
    }

    #[test]
    fn tables_have_entries_of_their_kind_or_none() {
        let entry_size = |image: &mut [u8], at: usize, size: u16| {
            image[at..at + 2].copy_from_slice(&size.to_le_bytes());
        };
        for size in [0, 1, 40, 63, 65, u16::MAX] {
            let mut image = small_elf();
            entry_size(&mut image, 58, size);
            assert!(bounded(&image).is_err(), "{size}");
            // Without entries their size means nothing.
            entry_size(&mut image, 60, 0);
            image[40..48].fill(0);
            assert!(bounded(&image).is_ok(), "{size}");
        }
        for size in [0, 55, 57, 64] {
            let mut image = small_elf();
            entry_size(&mut image, 54, size);
            assert!(bounded(&image).is_ok(), "{size}");
            entry_size(&mut image, 56, 1);
            assert!(bounded(&image).is_err(), "{size}");
        }
        // A table that would end beyond all addresses.
        for at in [32, 40] {
            let mut image = small_elf();
            entry_size(&mut image, 54, 56);
            entry_size(&mut image, 56, 1);
            image[at..at + 8].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
            assert!(bounded(&image).is_err(), "{at}");
        }
    }

    #[test]
    fn entries_that_16_bits_cannot_count_are_looked_at() {
        // The first section header has the number of sections as its size.
        let extended = |sections: u64, segments: u32| {
            let mut image = small_elf();
            image[60..62].fill(0);
            image[96 + 24..96 + 32].fill(0);
            image[96 + 32..96 + 40].copy_from_slice(&sections.to_le_bytes());
            image[96 + 44..96 + 48].copy_from_slice(&segments.to_le_bytes());
            image
        };
        assert!(bounded(&extended(1, 0)).is_ok());
        assert!(bounded(&extended(2, 0)).is_err());
        assert!(bounded(&extended(u64::MAX, 0)).is_err());
        let mut many = extended(1, 1);
        many[32..40].copy_from_slice(&64_u64.to_le_bytes());
        many[54..56].copy_from_slice(&56_u16.to_le_bytes());
        many[56..58].fill(0xFF);
        assert!(bounded(&many).is_ok());
        many[96 + 44..96 + 48].copy_from_slice(&2_u32.to_le_bytes());
        assert!(bounded(&many).is_err());
    }

    #[test]
    fn every_changed_byte_of_the_headers_ends_in_order() {
        let whole = small_elf();
        for at in 0..whole.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut image = whole.clone();
                image[at] = value;
                // Whatever it is, it is told without a panic.
                let _ = bounded(&image);
            }
        }
    }

    #[test]
    fn a_fat_binary_must_hold_its_payload() {
        let mut image = vec![0; 48];
        image[..4].copy_from_slice(FAT_BINARY);
        image[6..8].copy_from_slice(&16_u16.to_le_bytes());
        image[8..16].copy_from_slice(&32_u64.to_le_bytes());
        assert!(bounded(&image).is_ok());
        assert!(bounded(&image[..47]).is_err());
        image[6..8].copy_from_slice(&15_u16.to_le_bytes());
        assert!(bounded(&image).is_err());
    }

    #[test]
    fn ptx_is_terminated_once() {
        assert_eq!(bounded(b".version 7.0").unwrap().last(), Some(&0));
        assert_eq!(bounded(b".version 7.0\0").unwrap().len(), 13);
        assert!(bounded(b".version\0 7.0").is_err());
        assert!(bounded(b"\xff\xfe").is_err());
        assert!(bounded(b"").is_err());
    }
}
