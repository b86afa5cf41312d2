//! A small repository to build kernels in.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use tempfile::TempDir;
use xtask::build_kernels::{self, Compiler, Layout, Outcome, Progress, Selection};
use xtask::files;
use xtask::packs;
use xtask::toolchain::{self, Toolchain};

/// The pinned toolchain, fetched if need be.
fn toolchain() -> &'static Toolchain {
    static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| toolchain::pinned(&files::repository_root().join(".cache")).unwrap())
}

pub(crate) struct Workshop {
    pub(crate) layout: Layout,
    pub(crate) compiler: Compiler,
    _directory: TempDir,
}

impl Workshop {
    /// With the real shared headers and every sample kernel, good and bad, in `kernels/`.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::of_repository(directory.path());
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let sources: Vec<PathBuf> = [tests.join("good"), tests.join("bad")]
            .iter()
            .flat_map(|directory| files::list(directory).unwrap())
            .collect();
        // build-kernels writes generated/base/abi.cuh.
        let record = layout.kernels.join("base/record.cuh");
        std::fs::create_dir_all(layout.kernels.join("base")).unwrap();
        std::fs::copy(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/base/record.cuh"),
            record,
        )
        .unwrap();
        for source in sources {
            std::fs::copy(&source, layout.kernels.join(source.file_name().unwrap())).unwrap();
        }
        Self {
            layout,
            compiler: Compiler {
                toolchain: toolchain().clone(),
                worker: PathBuf::from(env!("CARGO_BIN_EXE_xtask")),
                jobs: 2,
            },
            _directory: directory,
        }
    }

    /// Lists one tiling of `source` as family `scalar`; `settings` are more lines of its table.
    pub(crate) fn list(&self, source: &str, targets: &[&str], settings: &str) {
        self.write_list(source, targets, settings, &[32]);
    }

    /// Lists a tiling of `source` for each number of query rows.
    pub(crate) fn list_tilings(&self, source: &str, targets: &[&str], rows: &[u32]) {
        self.write_list(source, targets, "", rows);
    }

    fn write_list(&self, source: &str, targets: &[&str], settings: &str, rows: &[u32]) {
        let tilings: Vec<String> = rows
            .iter()
            .map(|rows| {
                format!(
                    "{{ head_dim = 64, block_m = {rows}, block_n = 64, warps = 4, stages = 2 }}"
                )
            })
            .collect();
        let text = format!(
            "[[family]]\nname = \"scalar\"\nsource = \"{source}\"\nelements = [\"f16\"]\ntargets = {targets:?}\n{settings}\n\
             tilings = [{}]\n",
            tilings.join(", ")
        );
        std::fs::write(self.layout.kernels.join("instances.toml"), text).unwrap();
    }

    pub(crate) fn build(&self) -> Outcome {
        self.try_build(&Selection::default()).unwrap()
    }

    pub(crate) fn try_build(&self, selection: &Selection) -> Result<Outcome> {
        build_kernels::build(&self.layout, &self.compiler, selection, &Silent)
    }

    /// Where the sm_80 cubin of the one kernel lies.
    pub(crate) fn pack_path(&self) -> PathBuf {
        self.layout.pack("scalar_d64_32x64_w4_s2_sm_80")
    }

    /// The pack's contents.
    pub(crate) fn pack(&self) -> Vec<u8> {
        zstd::decode_all(&std::fs::read(self.pack_path()).unwrap()[..]).unwrap()
    }

    pub(crate) fn edit_pack(&self, edit: impl Fn(&mut Vec<u8>)) {
        let mut contents = self.pack();
        edit(&mut contents);
        std::fs::write(self.pack_path(), packs::compress(&contents).unwrap()).unwrap();
    }

    pub(crate) fn edit_manifest(&self, from: &str, to: &str) {
        let path = self.layout.manifest();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
    }

    /// The differences that `--check` finds.
    pub(crate) fn differences(&self) -> Vec<String> {
        self.check(&Selection::default()).1
    }

    /// The images that `--check` compiles, and the differences it finds.
    pub(crate) fn check(&self, selection: &Selection) -> (Vec<String>, Vec<String>) {
        let (outcome, differences) =
            build_kernels::check(&self.layout, &self.compiler, selection, &Silent).unwrap();
        assert_eq!(outcome.failures, []);
        (outcome.compiled, differences)
    }
}

struct Silent;

impl Progress for Silent {
    fn begin(&self, _count: usize) {}
    fn finished(&self, _image: &str) {}
}
