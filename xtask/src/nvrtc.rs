//! NVRTC, opened at run time: source text in, cubin or PTX and the compiler's log out.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, Result, anyhow};
use libloading::Library;

type Program = *mut c_void;
type SizeQuery = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type BytesQuery = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// `NVRTC_SUCCESS` and the two results compiling legitimately has.
const SUCCESS: c_int = 0;
const COMPILATION_ERROR: c_int = 6;

/// The result of compiling a program.
#[derive(Debug, Clone, Default)]
pub struct Compiled {
    /// True if it compiled.
    pub ok: bool,
    /// Errors, warnings, and the resource report of `--ptxas-options=-v`.
    pub log: String,
    /// Machine code; empty for a virtual architecture.
    pub cubin: Vec<u8>,
    /// PTX, ending in a NUL.
    pub ptx: Vec<u8>,
}

/// The opened library.
pub struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log: (SizeQuery, BytesQuery),
    cubin: (SizeQuery, BytesQuery),
    ptx: (SizeQuery, BytesQuery),
    _library: Library,
}

impl Nvrtc {
    /// Opens the library at `path`.
    ///
    /// # Errors
    /// If it is not there or not NVRTC.
    pub fn load(path: &Path) -> Result<Self> {
        let error = |error| anyhow!("cannot use {} as NVRTC: {error}", path.display());
        // SAFETY: the file is the toolchain's own NVRTC, whose initializers are those of an ordinary shared library; the
        // types below are those of nvrtc.h, unchanged since CUDA 11.1; the pointers do not outlive `_library`.
        unsafe {
            let library = Library::new(path).map_err(error)?;
            Ok(Self {
                create: *library.get(b"nvrtcCreateProgram").map_err(error)?,
                destroy: *library.get(b"nvrtcDestroyProgram").map_err(error)?,
                compile: *library.get(b"nvrtcCompileProgram").map_err(error)?,
                log: (
                    *library.get(b"nvrtcGetProgramLogSize").map_err(error)?,
                    *library.get(b"nvrtcGetProgramLog").map_err(error)?,
                ),
                cubin: (
                    *library.get(b"nvrtcGetCUBINSize").map_err(error)?,
                    *library.get(b"nvrtcGetCUBIN").map_err(error)?,
                ),
                ptx: (
                    *library.get(b"nvrtcGetPTXSize").map_err(error)?,
                    *library.get(b"nvrtcGetPTX").map_err(error)?,
                ),
                _library: library,
            })
        }
    }

    /// Compiles `source`, which messages and internal symbols call `name`.
    ///
    /// # Errors
    /// If NVRTC itself fails, for example over an unknown option.
    pub fn compile(&self, source: &str, name: &str, options: &[String]) -> Result<Compiled> {
        let c_string =
            |text: &str| CString::new(text).context("NVRTC takes no text with a NUL in it");
        let (source, name) = (c_string(source)?, c_string(name)?);
        let options: Vec<CString> = options
            .iter()
            .map(|option| c_string(option))
            .collect::<Result<_>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut program = ProgramHandle {
            nvrtc: self,
            program: ptr::null_mut(),
        };
        // SAFETY: both strings are NUL-terminated and outlive the call; no headers are passed, so their arrays may be null.
        let result = unsafe {
            (self.create)(
                &mut program.program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if result != SUCCESS {
            return Err(call_failed("nvrtcCreateProgram", result, ""));
        }
        let count = c_int::try_from(options.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program was created above; `options` holds `count` pointers to NUL-terminated strings that outlive
        // the call.
        let result = unsafe { (self.compile)(program.program, count, options.as_ptr()) };
        let log = program.bytes("nvrtcGetProgramLog", self.log)?;
        let log = String::from_utf8_lossy(&log)
            .trim_end_matches('\0')
            .to_owned();
        match result {
            SUCCESS => Ok(Compiled {
                ok: true,
                log,
                cubin: program.bytes("nvrtcGetCUBIN", self.cubin)?,
                ptx: program.bytes("nvrtcGetPTX", self.ptx)?,
            }),
            COMPILATION_ERROR => Ok(Compiled {
                log,
                ..Compiled::default()
            }),
            other => Err(call_failed("nvrtcCompileProgram", other, &log)),
        }
    }
}

/// A program that is destroyed however its compilation ends.
struct ProgramHandle<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl ProgramHandle<'_> {
    fn bytes(&self, call: &'static str, (size, get): (SizeQuery, BytesQuery)) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program is alive and `len` is a valid place for the size.
        let result = unsafe { size(self.program, &mut len) };
        if result != SUCCESS {
            return Err(call_failed(call, result, ""));
        }
        let mut bytes = vec![0_u8; len];
        if len > 0 {
            // SAFETY: the program is alive and `bytes` has the size NVRTC just named for this output.
            let result = unsafe { get(self.program, bytes.as_mut_ptr().cast()) };
            if result != SUCCESS {
                return Err(call_failed(call, result, ""));
            }
        }
        Ok(bytes)
    }
}

impl Drop for ProgramHandle<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program was created and is destroyed only here. A failure could only leak it.
            unsafe { (self.nvrtc.destroy)(&mut self.program) };
        }
    }
}

fn call_failed(call: &str, result: c_int, log: &str) -> anyhow::Error {
    let detail = match log.trim() {
        "" => String::new(),
        log => format!(": {log}"),
    };
    anyhow!("NVRTC: {call} failed with result {result}{detail}")
}
