//! Checks that the driver does not make: it is given a module image without its length.

use std::borrow::Cow;

use crate::error::{DriverError, Result};

/// First bytes of an ELF file, which a cubin is.
const ELF: &[u8] = b"\x7fELF";
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
        return match elf_end(image) {
            Some(end) if end <= image.len() as u64 => Ok(Cow::Borrowed(image)),
            _ => refuse("it is a cubin (ELF) that ends before its headers say"),
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

/// Where the last thing that a 64-bit little-endian ELF's headers mention ends.
fn elf_end(image: &[u8]) -> Option<u64> {
    // Offsets in the ELF header: e_phoff 32, e_shoff 40, e_phentsize 54, e_phnum 56,
    // e_shentsize 58, e_shnum 60; in a section header: sh_type 4, sh_offset 24, sh_size 32; in a
    // program header: p_offset 8, p_filesz 32.
    const SHT_NOBITS: u32 = 8;
    let sections = u64_at(image, 40)?;
    let (section_size, section_count) = (u16_at(image, 58)?, u16_at(image, 60)?);
    let segments = u64_at(image, 32)?;
    let (segment_size, segment_count) = (u16_at(image, 54)?, u16_at(image, 56)?);
    let mut end = 64
        .max(sections.checked_add(u64::from(section_size) * u64::from(section_count))?)
        .max(segments.checked_add(u64::from(segment_size) * u64::from(segment_count))?);
    if end > image.len() as u64 {
        return Some(end);
    }
    for index in 0..u64::from(section_count) {
        let at = usize::try_from(sections + index * u64::from(section_size)).ok()?;
        if u32_at(image, at + 4)? != SHT_NOBITS {
            end = end.max(u64_at(image, at + 24)?.checked_add(u64_at(image, at + 32)?)?);
        }
    }
    for index in 0..u64::from(segment_count) {
        let at = usize::try_from(segments + index * u64::from(segment_size)).ok()?;
        end = end.max(u64_at(image, at + 8)?.checked_add(u64_at(image, at + 32)?)?);
    }
    Some(end)
}

/// A fat binary's header: magic (4 bytes), version (2), header size (2), payload size (8).
fn fat_binary_end(image: &[u8]) -> Option<u64> {
    u64_at(image, 8)?.checked_add(u64::from(u16_at(image, 6)?))
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
        image[..4].copy_from_slice(ELF);
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
    fn a_fat_binary_must_hold_its_payload() {
        let mut image = vec![0; 48];
        image[..4].copy_from_slice(FAT_BINARY);
        image[6..8].copy_from_slice(&16_u16.to_le_bytes());
        image[8..16].copy_from_slice(&32_u64.to_le_bytes());
        assert!(bounded(&image).is_ok());
        assert!(bounded(&image[..47]).is_err());
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
