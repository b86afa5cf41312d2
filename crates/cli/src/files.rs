//! Tensors in files: reading with every claim of the file checked, and writing.

mod options;
mod write;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use either::Either;
use half::{bf16, f16};
use safetensors::tensor::{SafeTensors, TensorView};
use safetensors::{Dtype, SafeTensorError};
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use warptile::kernels::Operations;
use warptile::spec::{E4m3, Operand, Slots, Types};
use warptile::{Element, ElementType, Layout};

use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::npy;
use crate::options::LayoutKind;
use crate::tensors::Numbers;
use crate::text;

pub(crate) use options::help;
pub(crate) use write::{OutTensor, dtype_of, element_of, write};

/// The format of a file, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Safetensors,
    /// One array.
    Npy,
    Npz,
}

impl Format {
    pub(crate) fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Format::Npy,
            Some("npz") => Format::Npz,
            _ => Format::Safetensors,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Npy => ".npy",
            Format::Npz => ".npz",
        }
    }
}

/// The tensors of a file, or of several `.npy` files, by name.
pub(crate) struct Tensors {
    /// The files, as messages name them.
    origin: String,
    buffers: Vec<Vec<u8>>,
    tensors: BTreeMap<String, Stored>,
    packed: Vec<Packed>,
}

/// An `.npz` file; only its headers were read.
struct Packed {
    path: PathBuf,
    archive: npy::Archive,
    /// In the archive's order.
    members: Vec<(String, npy::Array)>,
}

/// Where a tensor is.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    buffer: usize,
    data: Range<usize>,
}

impl Tensors {
    /// Opens a file, or several `.npy` files, whose arrays are named after the files. Tensors of an `.npz` file can be looked at by
    /// [`shape`](Self::shape) only, until they are [loaded](Self::load).
    ///
    /// # Errors
    /// [`Failure::File`] or [`Failure::Format`]; [`Failure::Input`] if several files are others.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, Failure> {
        if let Some(other) = paths
            .iter()
            .find(|path| paths.len() > 1 && Format::of(path) != Format::Npy)
        {
            return Err(Failure::Input(format!(
                "{}: of several files each must be an .npy file, called as its tensor",
                other.display()
            )));
        }
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut tensors = Tensors {
            origin: names.join(", "),
            buffers: Vec::new(),
            tensors: BTreeMap::new(),
            packed: Vec::new(),
        };
        for path in paths {
            tensors.add_file(path)?;
        }
        Ok(tensors)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Failure> {
        let bytes = fs::read(path).map_err(|source| Failure::read(path, source))?;
        let format = Format::of(path);
        let added = match format {
            Format::Safetensors => self.add_safetensors(bytes),
            Format::Npy => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                self.add_array(name.into_owned(), bytes)
            }
            Format::Npz => self.add_archive(path, bytes),
        };
        added.map_err(|reason| Failure::Format {
            path: path.to_owned(),
            kind: format.name(),
            reason,
        })
    }

    fn add_array(&mut self, name: String, bytes: Vec<u8>) -> Result<(), String> {
        let array =
            npy::parse(&bytes).map_err(|error| format!("{}: {error}", text::name(&name)))?;
        self.add(name, array, bytes)
    }

    fn add_archive(&mut self, path: &Path, bytes: Vec<u8>) -> Result<(), String> {
        let (archive, members) = npy::Archive::open(bytes)?;
        for (name, array) in &members {
            self.add(name.clone(), array.clone(), Vec::new())?;
        }
        self.packed.push(Packed {
            path: path.to_owned(),
            archive,
            members,
        });
        Ok(())
    }

    fn add(&mut self, name: String, array: npy::Array, bytes: Vec<u8>) -> Result<(), String> {
        let stored = Stored {
            dtype: array.dtype,
            shape: array.shape,
            buffer: self.buffers.len(),
            data: array.data,
        };
        if self.tensors.contains_key(&name) {
            return Err(two_tensors(&name));
        }
        self.tensors.insert(name, stored);
        self.buffers.push(bytes);
        Ok(())
    }

    /// Unpacks the tensors that are wanted, by name and shape. The others of an `.npz` file are not there afterwards.
    ///
    /// # Errors
    /// [`Failure::Format`].
    pub(crate) fn load(
        &mut self,
        mut wanted: impl FnMut(&str, &[usize]) -> bool,
    ) -> Result<(), Failure> {
        for Packed {
            path,
            mut archive,
            members,
        } in std::mem::take(&mut self.packed)
        {
            for (index, (name, array)) in members.iter().enumerate() {
                if !wanted(name, &array.shape) {
                    continue;
                }
                let unpacked = archive.unpack(index, array);
                let bytes = unpacked.map_err(|error| Failure::Format {
                    path: path.clone(),
                    kind: Format::Npz.name(),
                    reason: format!("{}: {error}", text::name(name)),
                })?;
                self.buffers[self.tensors[name].buffer] = bytes;
            }
        }
        Ok(())
    }

    fn add_safetensors(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let entries = Entries::of(&bytes).unwrap_or_default();
        if let Some(name) = entries.twice {
            return Err(two_tensors(&name));
        }
        let (header, metadata) = SafeTensors::deserialize(&bytes)
            .and_then(|_| SafeTensors::read_metadata(&bytes))
            .map_err(|error| describe(&error, bytes.len(), entries.end))?;
        // The header is behind its length.
        let start = size_of::<u64>() + header;
        for (name, info) in metadata.tensors() {
            let stored = Stored {
                dtype: info.dtype,
                shape: info.shape.clone(),
                buffer: self.buffers.len(),
                data: start + info.data_offsets.0..start + info.data_offsets.1,
            };
            self.tensors.insert(name, stored);
        }
        self.buffers.push(bytes);
        Ok(())
    }

    /// The names of the tensors, in order.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of the tensor called `name`, if there is one.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| &stored.shape[..])
    }

    /// The tensor called `name`, if there is one.
    pub(crate) fn optional(&self, name: &str) -> Option<TensorView<'_>> {
        let stored = self.tensors.get(name)?;
        let data = self.buffers[stored.buffer].get(stored.data.clone())?;
        TensorView::new(stored.dtype, stored.shape.clone(), data).ok()
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`Failure::Input`] that lists what there is instead.
    pub(crate) fn required(&self, name: &str) -> Result<TensorView<'_>, Failure> {
        self.optional(name).ok_or_else(|| {
            let names = match self.names().len() {
                0 => "no tensors".to_owned(),
                _ => format!("only {}", text::names(self.names())),
            };
            self.wrong(&format!("tensor {name} is missing; the file has {names}"))
        })
    }

    /// An error about these tensors.
    pub(crate) fn wrong(&self, what: &str) -> Failure {
        Failure::Input(format!("{}: {what}", self.origin))
    }
}

fn two_tensors(name: &str) -> String {
    format!("there are two tensors called {}", text::name(name))
}

/// The entries of a safetensors header, one by one: the library keeps the last of those with one name.
#[derive(Default)]
struct Entries {
    /// A name that two entries have.
    twice: Option<String>,
    /// Where the data ends in the file.
    end: u64,
}

impl Entries {
    /// The entries of a file, if its header can be read.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk()?;
        let header = rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let mut json = serde_json::Deserializer::from_slice(header);
        let mut entries = json.deserialize_map(Entries::default()).ok()?;
        entries.end = { entries.end }.saturating_add((len.len() + header.len()) as u64);
        Some(entries)
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the entries of a header")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, entry)) = map.next_entry::<String, serde_json::Value>()? {
            let end = entry["data_offsets"][1].as_u64();
            self.end = self.end.max(end.unwrap_or(0));
            self.twice = names.replace(name).or(self.twice);
        }
        Ok(self)
    }
}

/// The library's message, with what a user can do about it. `len` and `end`: bytes of the file, and those that its header describes.
fn describe(error: &SafeTensorError, len: usize, end: u64) -> String {
    match error {
        SafeTensorError::MetadataIncompleteBuffer if end < len as u64 => {
            format!("the file has {len} bytes, but its header describes only the first {end}")
        }
        SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength
        | SafeTensorError::MetadataIncompleteBuffer => {
            format!("{error}; the file has {len} bytes and may be truncated")
        }
        // Some of them quote the file.
        _ => text::message(&error.to_string()),
    }
}

/// The names of the tensors that an input file may hold: those of the operands, keys and values in pages, and a gradient of the output.
fn input_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Operand::of(Operations::FORWARD)
        .filter_map(Operand::file_name)
        .collect();
    names.splice(3..3, PAGES);
    names.push(Operand::DOut.name());
    names
}

/// The names of keys and values in pages.
const PAGES: [&str; 2] = [Operand::KPages.name(), Operand::VPages.name()];

/// Refuses a file with a tensor that would be ignored: a result without, say, its `attn_mask` would be wrong in silence.
fn refuse_unknown(file: &Tensors) -> Result<(), Failure> {
    let mut unknown: Vec<&str> = file.names().collect();
    let inputs = input_names();
    unknown.retain(|name| !inputs.contains(name));
    match unknown.len() {
        0 => Ok(()),
        count => Err(file.wrong(&format!(
            "{} {} not used; an input file has {}",
            text::names(unknown),
            if count == 1 { "is" } else { "are" },
            inputs.join(", "),
        ))),
    }
}

/// Opens files of inputs; what there is in them, and the element type of `q`.
///
/// # Errors
/// [`Failure::File`] and [`Failure::Format`] for the file, [`Failure::Input`] for unknown tensors and a type that attention does not take.
pub(crate) fn open_inputs(paths: &[PathBuf]) -> Result<(Tensors, ElementType), Failure> {
    let mut file = Tensors::open(paths)?;
    refuse_unknown(&file)?;
    file.load(|_, _| true)?;
    let dtype = file.required("q")?.dtype();
    let element = element_of(dtype).ok_or_else(|| {
        file.wrong(&format!(
            "q has elements of type {dtype}; attention takes F16, BF16 and F32: in NumPy, save q, k and v with .astype('float16') or \
             .astype('float32')"
        ))
    })?;
    Ok((file, element))
}

/// Reads `q`, `k` and `v`, or `q`, `k_pages` and `v_pages`, and, where they exist, the tensors of the other operands.
///
/// # Errors
/// [`Failure::Input`] for what is in the file.
pub(crate) fn read_inputs<T: Element>(
    file: &Tensors,
    layout: LayoutKind,
) -> Result<Inputs<T>, Failure> {
    let dtype = dtype_of(T::TYPE);
    let wrong = |what: &str| file.wrong(what);
    let has = |name: &str| file.optional(name).is_some();
    let paged = PAGES.into_iter().any(has) || has(name_of(Operand::BlockTable));
    let (k, v) = match paged {
        true => (PAGES[0], PAGES[1]),
        false => ("k", "v"),
    };
    if paged && (has("k") || has("v")) {
        return Err(wrong(
            "keys and values are either k and v or k_pages and v_pages",
        ));
    }
    let offsets = [Operand::QueryOffsets, Operand::KeyOffsets].map(|operand| has(name_of(operand)));
    match offsets {
        [_, true] if paged => {
            return Err(wrong(
                "cu_seqlens_k is there, but keys in pages are not packed",
            ));
        }
        [true, false] if paged => {}
        [false, false] | [true, true] => {}
        _ => {
            return Err(wrong(
                "cu_seqlens_q and cu_seqlens_k must both be there, or neither",
            ));
        }
    }
    let of_rows = |packed: bool| match packed {
        true => Dimensions::Packed,
        false => Dimensions::Dense,
    };
    let of_keys = match paged {
        true => Dimensions::Pages,
        false => of_rows(offsets[1]),
    };
    let tensors = TensorReader {
        file,
        layout,
        q: dtype,
        element: T::TYPE,
    };
    let (q, q_layout) = tensors.read("q", dtype, of_rows(offsets[0]))?;
    if paged {
        file.required(name_of(Operand::BlockTable))?;
    }
    let key_type = tensors.key_type(k, v)?;
    let (kv, [k_layout, v_layout]) = match key_type.is_scaled() {
        false => {
            let (kv, layouts) = tensors.pair([k, v], dtype, of_keys)?;
            (Either::Left(kv), layouts)
        }
        true => {
            let (kv, layouts) = tensors.pair([k, v], dtype_of(key_type), of_keys)?;
            (Either::Right(kv), layouts)
        }
    };
    let d_out = match file.optional(Operand::DOut.name()) {
        Some(_) => Some(tensors.read(Operand::DOut.name(), dtype, of_rows(offsets[0]))?),
        None => None,
    };
    let mut inputs = Inputs {
        types: Types::of(T::TYPE).keys(key_type),
        q,
        kv,
        layouts: [q_layout, k_layout, v_layout],
        numbers: Numbers::default(),
        scores: Slots::none(),
        bias_f32: None,
        d_out,
    };
    for operand in Operand::of(Operations::FORWARD) {
        if let Some(view) = file.optional(name_of(operand)) {
            options::read(file, operand, &view, &mut inputs)?;
        }
    }
    Ok(inputs)
}

/// The name of an operand in a file; that of the library for operands that no file has.
pub(crate) fn name_of(operand: Operand) -> &'static str {
    operand.file_name().unwrap_or(operand.name())
}

/// Reads q, and keys and values.
struct TensorReader<'a> {
    file: &'a Tensors,
    layout: LayoutKind,
    /// The type of q.
    q: Dtype,
    element: ElementType,
}

impl TensorReader<'_> {
    /// A tensor of elements of type `T`, which is called `dtype` in files.
    fn read<T: bytemuck::Pod>(
        &self,
        name: &'static str,
        dtype: Dtype,
        dimensions: Dimensions,
    ) -> Result<(Vec<T>, Layout), Failure> {
        let view = self.file.required(name)?;
        if view.dtype() != dtype {
            return Err(self.file.wrong(&format!(
                "{name} has elements of type {}, but q has {}; keys and values both have q's type, or both {}",
                view.dtype(),
                self.q,
                quantized_names()
            )));
        }
        let stored = dimensions.stored_shape(self.file, name, view.shape())?;
        let elements = bytemuck::pod_collect_to_vec::<u8, T>(view.data());
        Ok((elements, self.layout.layout(stored)))
    }

    /// Keys and values of one type.
    fn pair<T: bytemuck::Pod>(
        &self,
        [k, v]: [&'static str; 2],
        dtype: Dtype,
        dimensions: Dimensions,
    ) -> Result<([Vec<T>; 2], [Layout; 2]), Failure> {
        let (k, k_layout) = self.read(k, dtype, dimensions)?;
        let (v, v_layout) = self.read(v, dtype, dimensions)?;
        Ok(([k, v], [k_layout, v_layout]))
    }

    /// The type of keys and values: q's, or a quantized one with its scales.
    fn key_type(&self, k: &str, v: &str) -> Result<ElementType, Failure> {
        let scales = [Operand::KScale, Operand::VScale].map(name_of);
        let has = |name: &&str| self.file.optional(name).is_some();
        let dtype = self.file.required(k)?.dtype();
        let of_dtype = |element: &ElementType| dtype_of(*element) == dtype;
        let element = ElementType::scaled().find(of_dtype);
        let wrong = match element {
            None => { scales.iter().find(|name| has(name)) }.map(|scale| {
                format!(
                    "{scale} is there, but {k} has elements of type {dtype}; scales belong to keys and values of type {}",
                    quantized_names()
                )
            }),
            Some(_) => { scales.iter().find(|name| !has(name)) }.map(|scale| {
                format!(
                    "{scale} is missing; {k} and {v} of type {dtype} are multiplied by {}",
                    scales.join(" and ")
                )
            }),
        };
        match wrong {
            Some(what) => Err(self.file.wrong(&what)),
            None => Ok(element.unwrap_or(self.element)),
        }
    }
}

/// The names of all scaled types, for messages.
fn quantized_names() -> String {
    let names: Vec<String> = { ElementType::scaled() }
        .map(|element| dtype_of(element).to_string())
        .collect();
    names.join(" or ")
}

/// The meaning of a tensor's dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dimensions {
    Dense,
    /// May leave out the batch, which is 1.
    Packed,
    Pages,
}

impl Dimensions {
    /// Four of them in storage order.
    fn stored_shape(
        self,
        file: &Tensors,
        name: &str,
        shape: &[usize],
    ) -> Result<[usize; 4], Failure> {
        match (self, shape) {
            (_, &[a, b, c, d]) => Ok([a, b, c, d]),
            (Dimensions::Packed, &[b, c, d]) => Ok([1, b, c, d]),
            _ => Err(file.wrong(&format!(
                "{name} has shape {}; {} dimensions are needed, {}",
                text::shape(shape),
                if self == Dimensions::Packed {
                    "3 or 4"
                } else {
                    "4"
                },
                match self {
                    Dimensions::Pages => {
                        "[pages, page rows, heads, head size] (with --layout bhsd: [pages, heads, page rows, head size])"
                    }
                    _ => {
                        "[batch, length, heads, head size] (with --layout bhsd: [batch, heads, length, head size])"
                    }
                },
            ))),
        }
    }
}

/// The elements of a tensor, each as another number.
fn elements<T: bytemuck::Pod, N>(view: &TensorView<'_>, number: fn(T) -> N) -> Vec<N> {
    let elements = bytemuck::pod_collect_to_vec::<u8, T>(view.data());
    elements.into_iter().map(number).collect()
}

/// The types that [`numbers`] reads, those of [`floats`] first.
const NUMBERS: [Dtype; 10] = [
    Dtype::F16,
    Dtype::BF16,
    Dtype::F32,
    Dtype::F64,
    Dtype::F8_E4M3,
    Dtype::I32,
    Dtype::U32,
    Dtype::I64,
    Dtype::BOOL,
    Dtype::U8,
];

/// A tensor whose elements are of none of these types.
fn of_another_type(file: &Tensors, name: &str, view: &TensorView<'_>, needed: &[Dtype]) -> Failure {
    file.wrong(&format!(
        "{name} has elements of type {}; {} is needed",
        view.dtype(),
        options::alternatives(needed)
    ))
}

/// The values of a tensor of any floating-point type, as f64.
///
/// # Errors
/// [`Failure::Input`] if the tensor is of another type.
pub(crate) fn floats(
    file: &Tensors,
    name: &str,
    view: &TensorView<'_>,
) -> Result<Vec<f64>, Failure> {
    match view.dtype() {
        Dtype::F16 => Ok(elements(view, f16::to_f64)),
        Dtype::BF16 => Ok(elements(view, bf16::to_f64)),
        Dtype::F32 => Ok(elements(view, |value: f32| value.into())),
        Dtype::F64 => Ok(elements(view, |value: f64| value)),
        _ => Err(of_another_type(file, name, view, &NUMBERS[..4])),
    }
}

/// [`floats`], and quantized values, integers and masks too.
///
/// # Errors
/// [`Failure::Input`] if the tensor is of another type.
pub(crate) fn numbers(
    file: &Tensors,
    name: &str,
    view: &TensorView<'_>,
) -> Result<Vec<f64>, Failure> {
    match view.dtype() {
        Dtype::I32 => Ok(elements(view, |value: i32| value.into())),
        Dtype::U32 => Ok(elements(view, |value: u32| value.into())),
        // Beyond 2^53 neighbours become one: no offset is that large.
        Dtype::I64 => Ok(elements(view, |value: i64| value as f64)),
        Dtype::BOOL | Dtype::U8 => Ok(elements(view, |value: u8| value.into())),
        Dtype::F8_E4M3 => Ok(elements(view, |bits: u8| {
            E4m3::from_bits(bits).to_f32().into()
        })),
        other if !NUMBERS.contains(&other) => Err(of_another_type(file, name, view, &NUMBERS)),
        _ => floats(file, name, view),
    }
}
