//! Running the built program, and writing files for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The built program, to be given arguments. Nothing it does may depend on a GPU of this machine.
///
/// In a bundle the paths of the machine that built it don't exist; WARPTILE_BIN and WARPTILE_ROOT say where things are.
pub(crate) fn warptile() -> Command {
    let built = || env!("CARGO_BIN_EXE_warptile").into();
    let mut command = Command::new(std::env::var_os("WARPTILE_BIN").unwrap_or_else(built));
    // Whoever runs the tests may have tuned a GPU, and may log problems.
    command
        .env("XDG_CONFIG_HOME", "/nowhere")
        .env_remove("WARPTILE_LOG");
    command
}

/// Where examples/ and README.md are.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("WARPTILE_ROOT").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        PathBuf::from,
    )
}

/// A file under examples/.
pub(crate) fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

/// Runs the program and returns its exit code, standard output and standard error.
///
/// A panic would show as exit code 101 and a message; no test expects either.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program starts");
    let stdout = String::from_utf8(stdout).expect("standard output is text");
    let stderr = String::from_utf8(stderr).expect("standard error is text");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let code = status
        .code()
        .expect("the program is not killed by a signal");
    (code, stdout, stderr)
}

/// Runs the program on these arguments and checks its exit code; standard output and standard error.
#[track_caller]
pub(crate) fn expect_code(code: i32, command: &mut Command) -> (String, String) {
    let (found, stdout, stderr) = run(command);
    assert_eq!(
        found, code,
        "standard output:\n{stdout}\nstandard error:\n{stderr}"
    );
    (stdout, stderr)
}

/// A tensor of a safetensors file: name, type, shape, bytes.
#[derive(Clone)]
pub(crate) struct Tensor(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) Vec<usize>,
    pub(crate) Vec<u8>,
);

/// An f32 tensor of slowly varying values.
pub(crate) fn f32_tensor(name: &'static str, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let data = (0..count)
        .flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes())
        .collect();
    Tensor(name, "F32", shape.to_vec(), data)
}

/// An i32 tensor of one dimension.
pub(crate) fn i32_tensor(name: &'static str, values: &[i32]) -> Tensor {
    let data = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    Tensor(name, "I32", vec![values.len()], data)
}

/// An i32 tensor of two dimensions.
pub(crate) fn i32_matrix(name: &'static str, shape: [usize; 2], values: &[i32]) -> Tensor {
    let Tensor(name, dtype, _, data) = i32_tensor(name, values);
    Tensor(name, dtype, shape.to_vec(), data)
}

/// The bytes of a safetensors file. Written by hand, so that a test can then break them.
pub(crate) fn file(tensors: &[Tensor]) -> Vec<u8> {
    let mut start = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|Tensor(name, dtype, shape, data)| {
            let end = start + data.len();
            let entry = format!(
                "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
            );
            start = end;
            entry
        })
        .collect();
    let mut bytes = with_header(&format!("{{{}}}", entries.join(",")));
    for Tensor(_, _, _, data) in tensors {
        bytes.extend_from_slice(data);
    }
    bytes
}

/// A file with this header and no data.
pub(crate) fn with_header(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

/// The values of an f32 tensor of a file the program wrote, with its shape.
pub(crate) fn read_f32(bytes: &[u8], name: &str) -> (Vec<usize>, Vec<f32>) {
    let file = safetensors::SafeTensors::deserialize(bytes).expect("a valid file");
    let tensor = file.tensor(name).expect("the tensor is there");
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    let values = tensor
        .data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    (tensor.shape().to_vec(), values)
}
