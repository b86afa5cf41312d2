//! NumPy's files: `.npy` holds an array, `.npz` is a zip archive of them (numpy/lib/format.py).
//!
//! The libraries for this bring a parser generator and an assembler for what is one line of text in the files that NumPy writes.

use std::io::{Cursor, Read, Write};
use std::ops::Range;

use safetensors::Dtype;
use serde::Deserialize;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::text;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy aligns the data to this many bytes.
const ALIGNMENT: usize = 64;

/// An array of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Where its elements are in the bytes of the file.
    pub(crate) data: Range<usize>,
}

/// The line of text before the data, which is a literal of Python.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// NumPy's names of element types. NumPy has no bf16 and no e4m3: ml_dtypes' arrays of them are saved as two bytes or one without a
/// meaning.
const NAMES: [(Dtype, &str); 10] = [
    (Dtype::BOOL, "|b1"),
    (Dtype::U8, "|u1"),
    (Dtype::F16, "<f2"),
    (Dtype::BF16, "<V2"),
    (Dtype::F8_E4M3, "|V1"),
    (Dtype::F32, "<f4"),
    (Dtype::F64, "<f8"),
    (Dtype::I32, "<i4"),
    (Dtype::U32, "<u4"),
    (Dtype::I64, "<i8"),
];

fn name(dtype: Dtype) -> Option<&'static str> {
    NAMES.iter().find(|one| one.0 == dtype).map(|one| one.1)
}

fn dtype(descr: &str) -> Option<Dtype> {
    // The byte order of plain bytes depends on NumPy's version.
    let descr = match descr {
        "|V2" => "<V2",
        "<V1" => "|V1",
        known => known,
    };
    NAMES.iter().find(|one| one.1 == descr).map(|one| one.0)
}

/// Finds the array in the bytes of an `.npy` file.
///
/// # Errors
/// A description of the error in the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Array, String> {
    find(bytes, bytes.len() as u64)
}

/// The bytes before the header, which say how long it is, and a limit of ours: NumPy itself reads no header beyond 10,000 bytes.
const BEFORE_HEADER: usize = MAGIC.len() + 6;
const LONGEST_HEADER: usize = 1 << 16;

/// Where the header is in a file that begins with `start`; the data follows it. `len`: bytes of the whole file.
fn header_range(start: &[u8], len: u64) -> Result<Range<usize>, String> {
    let rest = start
        .strip_prefix(MAGIC)
        .ok_or("it does not begin with \\x93NUMPY")?;
    let at = |width: usize| {
        let field = rest.get(2..2 + width).ok_or_else(|| truncated(len))?;
        let value = field
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
        let begin = MAGIC.len() + 2 + width;
        match value {
            0..=LONGEST_HEADER => Ok(begin..begin + value),
            _ => Err(format!(
                "its header has {value} bytes, and {LONGEST_HEADER} are read"
            )),
        }
    };
    match rest.first() {
        None => Err(truncated(len)),
        Some(1) => at(2),
        Some(2 | 3) => at(4),
        Some(major) => Err(format!("version {major} of the format is not known")),
    }
}

fn truncated(len: u64) -> String {
    format!("the file has {len} bytes and may be truncated")
}

/// Finds the array in a file of `len` bytes that begins with `start`, which ends behind the header or later.
fn find(start: &[u8], len: u64) -> Result<Array, String> {
    let range = header_range(start, len)?;
    let begin = range.end;
    let header = start.get(range).ok_or_else(|| truncated(len))?;
    let header: Header = serde_json::from_str(&as_json(header)?)
        .map_err(|error| format!("its header is not that of a plain array: {error}"))?;
    let dtype = dtype(&header.descr).ok_or_else(|| {
        let name = text::name(&header.descr);
        let little = header.descr.replace('>', "<");
        match dtype(&little) {
            Some(_) => format!(
                "elements of type {name} are in big-endian order; save array.astype('{little}') instead"
            ),
            None => format!(
                "elements of type {name} are not read; f2, f4, f8, i4, u4, i8, u1, b1, V2 (bf16) and V1 (e4m3) are"
            ),
        }
    })?;
    let long = header.shape.iter().filter(|&&length| length != 1).count();
    if header.fortran_order && long > 1 {
        return Err(
            "it is stored by columns; save numpy.ascontiguousarray(array) instead".to_owned(),
        );
    }
    let bits = header
        .shape
        .iter()
        .try_fold(dtype.bitsize(), |bits, &length| bits.checked_mul(length));
    let end = bits.and_then(|bits| begin.checked_add(bits / 8));
    match end {
        Some(end) if end as u64 == len => Ok(Array {
            dtype,
            shape: header.shape,
            data: begin..end,
        }),
        _ => Err(format!(
            "shape {} does not fit the {} bytes of data",
            text::shape(&header.shape),
            len.saturating_sub(begin as u64)
        )),
    }
}

/// The header of a plain array as JSON: tuples become lists, and no comma is left before a closing bracket.
fn as_json(header: &[u8]) -> Result<String, String> {
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    if header.contains(['"', '\\', '[']) {
        return Err("its header is not that of a plain array".to_owned());
    }
    let header = header.replace("True", "true").replace("False", "false");
    let mut json = String::with_capacity(header.len());
    for c in header.chars() {
        let c = match c {
            '\'' => '"',
            '(' => '[',
            ')' => ']',
            c => c,
        };
        if c == ']' || c == '}' {
            let end = json.trim_end().trim_end_matches(',').len();
            json.truncate(end);
        }
        json.push(c);
    }
    Ok(json)
}

/// The bytes of an `.npy` file.
///
/// # Errors
/// If NumPy has no such element type.
pub(crate) fn file(dtype: Dtype, shape: &[usize], data: &[u8]) -> Result<Vec<u8>, String> {
    let descr = name(dtype).ok_or_else(|| format!("NumPy has no elements of type {dtype}"))?;
    let lengths: Vec<String> = shape.iter().map(|length| format!("{length},")).collect();
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
        lengths.join(" ")
    );
    // Magic, version, length, header and a line break end at a multiple of the alignment.
    let before = MAGIC.len() + 4;
    let end = (before + header.len() + 1).next_multiple_of(ALIGNMENT);
    header.extend(std::iter::repeat_n(' ', end - before - header.len() - 1));
    header.push('\n');
    let header_len =
        u16::try_from(header.len()).map_err(|_| "the shape has too many dimensions")?;
    let mut bytes = Vec::with_capacity(end + data.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&header_len.to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    Ok(bytes)
}

/// The most bytes that one compressed byte stands for (zlib's technical details: 1032 to 1).
const MOST_COMPRESSED: u64 = 1032;

/// An `.npz` file whose members are unpacked one by one.
#[derive(Debug)]
pub(crate) struct Archive(ZipArchive<Cursor<Vec<u8>>>);

impl Archive {
    /// Reads the headers of all members: the names of the arrays, and where each is in its member.
    ///
    /// # Errors
    /// A description of the error in the file.
    pub(crate) fn open(bytes: Vec<u8>) -> Result<(Self, Vec<(String, Array)>), String> {
        let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| words(&error))?;
        // `zip` keeps only the last entry of each name.
        if archive.has_duplicate_names() {
            return Err("two tensors in the archive have the same name".to_owned());
        }
        let mut members = Vec::new();
        for index in 0..archive.len() {
            let mut member = archive.by_index(index).map_err(|error| words(&error))?;
            let file = member.name().map_err(|error| words(&error))?.into_owned();
            let Some(name) = file.strip_suffix(".npy").map(str::to_owned) else {
                return Err(format!("{} is not an .npy file", text::name(&file)));
            };
            let (len, compressed) = (member.size(), member.compressed_size());
            let array = match len <= compressed.saturating_mul(MOST_COMPRESSED) {
                true => array_of(&mut member, len),
                false => Err(format!("{compressed} bytes can't be unpacked to {len}")),
            };
            let array = array.map_err(|error| format!("{}: {error}", text::name(&name)))?;
            members.push((name, array));
        }
        Ok((Archive(archive), members))
    }

    /// The bytes of a member, by its place, as many as its header says.
    ///
    /// # Errors
    /// A description of the error in the member.
    pub(crate) fn unpack(&mut self, index: usize, array: &Array) -> Result<Vec<u8>, String> {
        let len = array.data.end;
        let mut data = Vec::new();
        data.try_reserve_exact(len)
            .map_err(|_| format!("there is no memory for its {len} bytes"))?;
        let member = self.0.by_index(index).map_err(|error| words(&error))?;
        // One more shows a member that goes on, and has the checksum compared.
        let read = member.take(len as u64 + 1).read_to_end(&mut data);
        read.map_err(|error| words(&error))?;
        match data.len() == len {
            true => Ok(data),
            false => Err(truncated(data.len() as u64)),
        }
    }
}

fn words(error: &dyn std::fmt::Display) -> String {
    text::message(&error.to_string())
}

/// Reads no more of a member than its header.
fn array_of(member: &mut impl Read, len: u64) -> Result<Array, String> {
    let mut start = Vec::new();
    let mut read_to = |start: &mut Vec<u8>, end: usize| {
        let missing = end.saturating_sub(start.len()) as u64;
        let read = member.take(missing).read_to_end(start);
        read.map_err(|error| words(&error))
    };
    read_to(&mut start, BEFORE_HEADER)?;
    let header = header_range(&start, len)?;
    read_to(&mut start, header.end)?;
    find(&start, len)
}

/// The bytes of an `.npz` file of these `.npy` files, uncompressed as `numpy.savez` writes them.
///
/// # Errors
/// If the archive is too large for its format.
pub(crate) fn pack(members: &[(&str, Vec<u8>)]) -> zip::result::ZipResult<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in members {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(data.len()).is_err());
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(data)?;
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NumPy 2.3 writes `numpy.arange(3, dtype="<i4")`.
    fn of_numpy() -> Vec<u8> {
        let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(header.bytes());
        bytes.extend(std::iter::repeat_n(b' ', 0x76 - 1 - header.len()));
        bytes.push(b'\n');
        bytes.extend([0_i32, 1, 2].iter().flat_map(|x| x.to_le_bytes()));
        bytes
    }

    /// The header with one part replaced.
    fn with(from: &str, to: &str) -> Result<Array, String> {
        let bytes = of_numpy();
        let text = String::from_utf8_lossy(&bytes[10..128]).replace(from, to);
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.bytes());
        file.extend(&bytes[128..]);
        parse(&file)
    }

    #[test]
    fn other_arrays_of_numpy_are_refused_with_what_to_save() {
        let error = with("<i4", ">i4").unwrap_err();
        assert!(
            error.ends_with("in big-endian order; save array.astype('<i4') instead"),
            "{error}"
        );
        let error = with("<i4", "<c8").unwrap_err();
        assert!(
            error.starts_with("elements of type <c8 are not read; f2, "),
            "{error}"
        );
    }

    #[test]
    fn what_numpy_writes_is_read_and_written_alike() {
        let bytes = of_numpy();
        let array = parse(&bytes).unwrap();
        assert_eq!((array.dtype, &array.shape[..]), (Dtype::I32, &[3][..]));
        assert_eq!(array.data, 128..140);
        let mine = file(Dtype::I32, &[3], &bytes[128..]).unwrap();
        assert_eq!(mine.len() % 4, 0);
        let again = parse(&mine).unwrap();
        assert_eq!((again.dtype, again.shape), (Dtype::I32, vec![3]));
        assert_eq!(mine[again.data], bytes[128..]);
        let scalar = file(Dtype::F64, &[], &[0; 8]).unwrap();
        assert_eq!(parse(&scalar).unwrap().shape, Vec::<usize>::new());
        let brain = file(Dtype::BF16, &[2, 1], &[0; 4]).unwrap();
        assert_eq!(parse(&brain).unwrap().dtype, Dtype::BF16);
        let small = file(Dtype::F8_E4M3, &[2, 1], &[0; 2]).unwrap();
        assert_eq!(parse(&small).unwrap().dtype, Dtype::F8_E4M3);
    }

    #[test]
    fn nothing_else_is_taken_for_an_array() {
        assert!(with("(3,)", "(3, 1)").is_ok());
        assert!(with("(3,)", "(1, 3)").is_ok_and(|array| array.shape == [1, 3]));
        assert!(with("False", "True").is_ok(), "one dimension has no order");
        for (from, to) in [
            ("(3,)", "(4,)"),
            ("(3,)", "(-3,)"),
            ("(3,)", "(18446744073709551615, 18446744073709551615)"),
            ("(3,)", "3"),
            ("'<i4'", "'>i4'"),
            ("'<i4'", "[('a', '<i4')]"),
            ("'<i4'", "'O'"),
            ("'shape'", "'form'"),
            ("False", "None"),
            ("}", ""),
        ] {
            assert!(with(from, to).is_err(), "{to}");
        }
        let columns = with("False", "True").unwrap().shape;
        assert_eq!(columns, [3]);
        let bytes = file(Dtype::I32, &[2, 2], &[0; 16]).unwrap();
        let text: Vec<u8> = String::from_utf8_lossy(&bytes[6..])
            .replace("False", "True ")
            .into_bytes();
        let by_columns = [&bytes[..6], &text].concat();
        assert!(parse(&by_columns).unwrap_err().contains("by columns"));
    }

    #[test]
    fn every_prefix_and_every_flipped_bit_ends_in_order() {
        let whole = of_numpy();
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
        for index in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[index] ^= 1 << bit;
                // Whatever it is, it ends.
                let _ = parse(&bytes);
            }
        }
        let archive = pack(&[("q", whole.clone()), ("k", whole.clone())]).unwrap();
        assert_eq!(unpack(&archive).unwrap(), [whole.clone(), whole]);
        for index in 0..archive.len() {
            let mut bytes = archive.clone();
            bytes[index] ^= 0x10;
            let _ = unpack(&bytes);
            let _ = unpack(&archive[..index]);
        }
    }

    fn unpack(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let (mut archive, members) = Archive::open(bytes.to_vec())?;
        let members = members.iter().enumerate();
        members
            .map(|(index, (_, array))| archive.unpack(index, array))
            .collect()
    }

    /// An archive with one compressed member.
    fn compressed(member: &[u8]) -> Vec<u8> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        archive.start_file("q.npy", options).unwrap();
        archive.write_all(member).unwrap();
        archive.finish().unwrap().into_inner()
    }

    /// Puts another number of unpacked bytes into the archive's directory and before the member.
    fn claiming(mut archive: Vec<u8>, len: u32) -> Vec<u8> {
        let directory = archive
            .windows(4)
            .rposition(|at| at == b"PK\x01\x02")
            .unwrap();
        for at in [22, directory + 24] {
            archive[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
        archive
    }

    #[test]
    fn no_more_is_unpacked_than_the_header_says() {
        let mut member = of_numpy();
        let len = member.len();
        assert_eq!(unpack(&compressed(&member)).unwrap(), [&member[..]]);
        member.resize(8 << 20, 0);
        let archive = compressed(&member);
        let error = Archive::open(archive.clone()).unwrap_err();
        assert!(error.contains("q: shape [3] does not fit the "), "{error}");
        // One that lies about its length.
        assert!(Archive::open(claiming(archive.clone(), len as u32)).is_ok());
        assert!(unpack(&claiming(archive, len as u32)).is_err());
        // More than there can be.
        let mut large = of_numpy();
        let shape = large.windows(4).position(|at| at == b"(3,)").unwrap();
        large.splice(shape..shape + 4, *b"(900000000,)");
        large.drain(128 - 8..128);
        let end = 128 + 4 * 900_000_000_u64;
        let error = Archive::open(claiming(compressed(&large), end as u32)).unwrap_err();
        assert!(error.contains("can't be unpacked to "), "{error}");
    }
}
