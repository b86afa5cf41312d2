//! Just enough of cubins and PTX to know which kernels they have and what those take.

use crate::argument::In;

/// A kernel of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Sizes of its parameters; unknown for PTX this stand-in can't read.
    pub(crate) params: Option<Vec<usize>>,
}

/// The contents of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) entries: Vec<Entry>,
    /// Compute capability times ten that a cubin was compiled for, or the least for a PTX.
    pub(crate) target: i32,
    pub(crate) is_ptx: bool,
}

/// Reads the image at a pointer: a cubin states its size, PTX ends in NUL.
pub(crate) fn read(image: &In<u8>) -> Option<Image> {
    if image.read(4) == *b"\x7fELF" {
        let header = image.read(64);
        let sections = u64_at(&header, 40)? as usize;
        let table = u16_at(&header, 58)? as usize * u16_at(&header, 60)? as usize;
        let segments = u64_at(&header, 32)? as usize;
        let segment_table = u16_at(&header, 54)? as usize * u16_at(&header, 56)? as usize;
        cubin(&image.read((sections + table).max(segments + segment_table)))
    } else {
        ptx(&String::from_utf8_lossy(&image.until_zero()))
    }
}

fn ptx(text: &str) -> Option<Image> {
    let target = text.split(".target sm_").nth(1)?;
    let digits = target
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(target.len());
    let entries = text
        .split(".entry ")
        .skip(1)
        .filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            let list = match rest[end..].trim_start().strip_prefix('(') {
                Some(list) => list.split(')').next()?,
                None => "",
            };
            let params = list.split(".param").skip(1).map(size_of_param).collect();
            Some(Entry {
                name: rest[..end].to_owned(),
                params,
            })
        })
        .collect();
    Some(Image {
        entries,
        target: target[..digits].parse().ok()?,
        is_ptx: true,
    })
}

/// Size of `.align 8 .b8 name[16]` or `.u64 name`.
fn size_of_param(declaration: &str) -> Option<usize> {
    let kind = declaration
        .split_whitespace()
        .find(|word| word.starts_with('.') && *word != ".align" && *word != ".ptr")?;
    let bits: usize = kind
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()?;
    let count = match declaration.split_once('[') {
        Some((_, rest)) => rest.split(']').next()?.trim().parse().ok()?,
        None => 1,
    };
    Some(bits / 8 * count)
}

fn cubin(image: &[u8]) -> Option<Image> {
    // ELF64: e_flags at 48, e_shoff 40, e_shentsize 58, e_shnum 60, e_shstrndx 62.
    let flags = u32_at(image, 48)?;
    // The ABI version at byte 8 says where e_flags has the architecture.
    let target = if *image.get(8)? >= 8 {
        flags >> 8 & 0xFF
    } else {
        flags & 0xFF
    };
    let table = u64_at(image, 40)? as usize;
    let (size, count) = (u16_at(image, 58)? as usize, u16_at(image, 60)? as usize);
    let section = |index: usize| -> Option<(u32, &[u8])> {
        let at = table + index * size;
        let (offset, len) = (
            u64_at(image, at + 24)? as usize,
            u64_at(image, at + 32)? as usize,
        );
        // Sections without bytes in the file lie outside it.
        let bytes = image
            .get(offset..offset.checked_add(len)?)
            .unwrap_or_default();
        Some((u32_at(image, at)?, bytes))
    };
    let (_, names) = section(u16_at(image, 62)? as usize)?;
    let mut entries = Vec::new();
    for index in 0..count {
        let (name, bytes) = section(index)?;
        let name = names.get(name as usize..)?.split(|&b| b == 0).next()?;
        if let Some(kernel) = name.strip_prefix(b".nv.info.") {
            entries.push(Entry {
                name: String::from_utf8_lossy(kernel).into_owned(),
                params: Some(parameter_sizes(bytes)),
            });
        }
    }
    Some(Image {
        entries,
        target: target as i32,
        is_ptx: false,
    })
}

/// The size of each parameter in a `.nv.info` section: a list of records (format, attribute, value). Format 4 is followed
/// by a 16-bit length and as many bytes, the others by two bytes.
fn parameter_sizes(info: &[u8]) -> Vec<usize> {
    /// EIATTR_KPARAM_INFO: index, ordinal, offset, and 32 bits, the upper 14 being the size.
    const PARAMETER: u8 = 0x17;
    const SIZE_SHIFT: u32 = 18;
    let mut sizes = Vec::new();
    let mut rest = info;
    while let [format, attribute, low, high, tail @ ..] = rest {
        if *format != 4 {
            rest = tail;
            continue;
        }
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        if let (&PARAMETER, Some([.., a, b, c, d])) = (attribute, tail.get(..len)) {
            sizes.push((u32::from_le_bytes([*a, *b, *c, *d]) >> SIZE_SHIFT) as usize);
        }
        rest = tail.get(len..).unwrap_or_default();
    }
    // The list has the last parameter first.
    sizes.reverse();
    sizes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_their_parameters_are_read_from_ptx() {
        let text = ".version 7.0\n.target sm_75\n.visible .entry one(.param .align 8 .b8 p[16])\n{}\n\
                    .entry two(.param .u64 a, .param .f32 b) {}\n.entry none() {}";
        let image = ptx(text).unwrap();
        assert_eq!(image.target, 75);
        let params: Vec<_> = image
            .entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.params.clone().unwrap()))
            .collect();
        assert_eq!(
            params,
            [("one", vec![16]), ("two", vec![8, 4]), ("none", vec![])]
        );
    }

    #[test]
    fn each_parameter_has_a_record_the_last_one_first() {
        let parameter = |size: u32| {
            let mut record = vec![4, 0x17, 12, 0];
            record.extend([0; 8]);
            record.extend((size << 18 | 0x1F).to_le_bytes());
            record
        };
        let mut info = vec![3, 0x19, 240, 0];
        info.extend(parameter(8));
        info.extend([4, 0x0A, 2, 0, 1, 2]);
        info.extend(parameter(640));
        assert_eq!(parameter_sizes(&info), [640, 8]);
        assert_eq!(parameter_sizes(&info[..12]), [0_usize; 0]);
    }
}
