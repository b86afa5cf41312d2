//! Images in a folder, under names of their own: as the sources are, to be timed beside those that ship, or debug images, which assert what
//! the host promises of a launch and what the kernels promise themselves.
//!
//! Debug images are compiled from a copy of the sources, into which the asserts are written without adding a line. The sources of all other
//! images know nothing of them.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;

use crate::build_kernels::{Compiler, Failure, Layout, Progress, Selection, select};
use crate::files;
use crate::folder;
use crate::instances::{self, Expectations, Instance};
use crate::manifest::Manifest;

/// The suffix of a debug image's kernel name.
const SUFFIX: &str = "debug";

/// Flags of debug images: the lines of the source next to the machine code, and the asserts ahead of the family's own source.
const FLAGS: [&str; 2] = ["--generate-line-info", "--pre-include=debug/checked.cuh"];

/// The first call of debug images, up to its arguments.
const CALL: &str = "warptile::check_launch<Instance>";

/// The line of a family's source that computes has this, and its arguments behind it up to the parenthesis at its end.
const COMPUTES: &str = "_attention<Instance>";

/// Folders of `kernels/` with what images are compiled from.
const FOLDERS: [&str; 9] = [
    "base",
    "debug",
    "entry",
    "forward",
    "generated/base",
    "memory",
    "ptx",
    "rule",
    "work",
];

/// The file of [`Assert`]s, in `kernels/`.
const ASSERTS: &str = "debug/asserts.toml";

/// `kernels/debug/asserts.toml`, which says what its fields mean.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asserts {
    assert: Vec<Assert>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Assert {
    file: PathBuf,
    after: String,
    holds: Vec<String>,
    /// For readers of the file.
    #[serde(rename = "why")]
    _why: String,
}

/// A text with what `change` makes of the one line for which it makes something. `Err`: how many there were.
fn with_line(text: &str, change: impl Fn(&str) -> Option<String>) -> Result<String, usize> {
    let mut changed = 0;
    let lines = text.split_inclusive('\n').map(|line| {
        let bare = line.trim_end_matches('\n');
        change(bare).map_or_else(
            || line.to_owned(),
            |new| {
                changed += 1;
                new + &line[bare.len()..]
            },
        )
    });
    let text = lines.collect();
    match changed {
        1 => Ok(text),
        _ => Err(changed),
    }
}

/// A family's source with the asserts called before the kernel computes: as one more statement of the macro that makes the image, or of the
/// macro that it names in namespace `warptile`.
fn with_calls(text: &str) -> String {
    let lines = text.split_inclusive('\n').map(|line| {
        let parts = || {
            let (before, arguments) =
                line.trim_end().strip_suffix(')')?.split_once(COMPUTES)?;
            if let Some(define) = before.strip_prefix("#define ") {
                let (name, computes) = define.split_once(' ')?;
                let call = CALL.strip_prefix("warptile::").unwrap_or(CALL);
                return Some(format!(
                    "#define {name} {call}{arguments}); warptile::{computes}{COMPUTES}{arguments})\n"
                ));
            }
            let (image, computes) = line.split_once('(')?;
            Some(format!("{image}({CALL}{arguments}; {computes}"))
        };
        parts().unwrap_or_else(|| line.to_owned())
    });
    lines.collect()
}

/// A header with the asserts of one entry.
fn with_assert(text: &str, assert: &Assert) -> Result<String, usize> {
    let asserts: Vec<String> = { assert.holds.iter() }
        .map(|condition| format!(" WARPTILE_ASSERT({condition});"))
        .collect();
    with_line(text, |line| {
        // A comment at the line's end would hide what follows it.
        let (code, comment) = line.split_once("//").map_or((line, ""), |(code, _)| {
            (code.trim_end(), &line[code.len()..])
        });
        let added = || {
            format!("{code}{} {comment}", asserts.concat())
                .trim_end()
                .to_owned()
        };
        (line.trim() == assert.after).then(added)
    })
}

/// Copies the sources, with asserts.
fn copy_sources(kernels: &Path, copy: &Path) -> Result<()> {
    let toml = files::read_text(&kernels.join(ASSERTS))?;
    let asserts: Asserts =
        toml::from_str(&toml).map_err(|error| anyhow!("debug/asserts.toml: {error}"))?;
    let mut used = 0;
    for folder in FOLDERS {
        for path in files::list(&kernels.join(folder))? {
            let Ok(relative) = path.strip_prefix(kernels) else {
                continue;
            };
            let mut text = files::read_text(&path)?;
            let place = |wanted: &str, found| {
                anyhow!(
                    "{}: {found} lines are `{wanted}`: one is needed for the asserts of debug images",
                    relative.display()
                )
            };
            // The operations other than forward have no asserts.
            if folder == "entry" {
                text = with_calls(&text);
            }
            for assert in asserts
                .assert
                .iter()
                .filter(|assert| assert.file == relative)
            {
                text = with_assert(&text, assert).map_err(|found| place(&assert.after, found))?;
                used += 1;
            }
            files::write(&copy.join(relative), text.as_bytes())?;
        }
    }
    match asserts.assert.len() - used {
        0 => Ok(()),
        lost => bail!("debug/asserts.toml: {lost} asserts name a file that is not there"),
    }
}

/// Changes the instance to one with asserts, for which registers may be spilled.
fn debug_image(instance: Instance) -> Instance {
    Instance {
        extra_flags: [&instance.extra_flags[..], &FLAGS.map(str::to_owned)[..]].concat(),
        expectations: Expectations {
            may_spill: true,
            ..instance.expectations
        },
        ..instance
    }
}

/// Compiles what is selected into a folder for `WARPTILE_KERNELS_DIR`, under names that end in `suffix`; without one debug images, next to
/// which the sources are in `kernels` as they were compiled: what line numbers refer to.
///
/// # Errors
/// As [`folder::build`]; also if a source has no place for an assert.
pub fn build(
    layout: &Layout,
    compiler: &Compiler,
    selection: &Selection,
    suffix: Option<&str>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<(Manifest, Vec<Failure>)> {
    let listed = instances::load(&layout.kernels.join("instances.toml"))?;
    let named: Vec<Instance> = select(&listed, selection)?
        .into_iter()
        // Only what can be named: the small steps have one kernel each.
        .filter(|instance| instance.tiling.head_dim > 0)
        .map(|instance| Instance {
            suffix: Some(suffix.unwrap_or(SUFFIX).to_owned()),
            ..instance
        })
        .collect();
    if suffix.is_some() {
        return folder::build(layout, compiler, &named, folder, progress);
    }
    let debug: Vec<Instance> = named.into_iter().map(debug_image).collect();
    let copy = folder.join("kernels");
    copy_sources(&layout.kernels, &copy)?;
    // The compiler resolves names from its own directory, not from that of the caller.
    let copy = std::fs::canonicalize(&copy).map_err(files::failed("find", &copy))?;
    let layout = Layout {
        kernels: copy,
        ..layout.clone()
    };
    folder::build(&layout, compiler, &debug, folder, progress)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sources::Sources;

    fn kernels() -> PathBuf {
        files::repository_root().join("kernels")
    }

    #[test]
    fn every_assert_has_a_place_and_lines_keep_their_numbers() {
        let copy = tempfile::tempdir().unwrap();
        copy_sources(&kernels(), copy.path()).unwrap();
        let mut asserts = 0;
        for folder in FOLDERS {
            for path in files::list(&kernels().join(folder)).unwrap() {
                let relative = path.strip_prefix(kernels()).unwrap();
                let (before, after) = (
                    files::read_text(&path).unwrap(),
                    files::read_text(&copy.path().join(relative)).unwrap(),
                );
                assert_eq!(
                    before.lines().count(),
                    after.lines().count(),
                    "{relative:?}"
                );
                for (old, new) in before
                    .lines()
                    .zip(after.lines())
                    .filter(|(old, new)| old != new)
                {
                    // Only added to: the line's own code is the beginning or, of a call, what is left without it.
                    let code = old.split("//").next().unwrap().trim();
                    let new = new.trim();
                    let ends = [(CALL, "; "), ("check_launch<Instance>", "; warptile::")];
                    let call = ends.iter().find_map(|(begin, end)| {
                        let at = new.find(begin)?;
                        Some(at..at + new[at..].find(end).unwrap() + end.len())
                    });
                    let calls = usize::from(call.is_some());
                    let rest = call.map_or(new.to_owned(), |call| new.replacen(&new[call], "", 1));
                    assert!(rest.starts_with(code), "{relative:?}: {new}");
                    let comment = rest.find("//").unwrap_or(rest.len());
                    asserts += rest[..comment].matches("WARPTILE_ASSERT(").count() + calls;
                }
            }
        }
        // A call for each that computes, and all conditions of the file.
        let text = files::read_text(&kernels().join(ASSERTS)).unwrap();
        let all: Asserts = toml::from_str(&text).unwrap();
        let conditions: usize = all.assert.iter().map(|one| one.holds.len()).sum();
        let entries = files::list(&kernels().join("entry")).unwrap();
        let calls: usize = { entries.iter() }
            .map(|path| files::read_text(path).unwrap())
            .map(|text| text.matches("_attention<").count())
            .sum();
        assert!(calls >= 5, "{calls}");
        assert_eq!(asserts, calls + conditions);
    }

    #[test]
    fn no_other_image_is_compiled_from_what_only_debug_images_have() {
        let listed = instances::load(&kernels().join("instances.toml")).unwrap();
        let names: BTreeSet<_> = listed.iter().map(|instance| &instance.source).collect();
        for source in names {
            let sources = Sources::read(&kernels(), source).unwrap();
            let of_debug: Vec<_> = sources
                .paths()
                .filter(|path| path.starts_with("debug"))
                .collect();
            assert!(of_debug.is_empty(), "{source}: {of_debug:?}");
            assert!(!sources.text.contains("WARPTILE_ASSERT"), "{source}");
        }
        for instance in listed {
            assert!(
                instance.flags().iter().all(|flag| !flag.contains("debug")),
                "{}",
                instance.image()
            );
            assert!(!instance.expectations.may_spill, "{}", instance.image());
            assert!(debug_image(instance).expectations.may_spill);
        }
    }

    #[test]
    fn a_line_that_is_not_there_once_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (kernels, copy) = (root.path().join("kernels"), root.path().join("copy"));
        for folder in FOLDERS {
            std::fs::create_dir_all(kernels.join(folder)).unwrap();
        }
        let header = kernels.join("work/a.cuh");
        let build = |text: &str, file: &str| {
            files::write(&header, text.as_bytes()).unwrap();
            let toml = format!(
                "[[assert]]\nfile = {file:?}\nafter = \"int a = 1;\"\nholds = [\"a\"]\nwhy = \"\"\n"
            );
            files::write(&kernels.join(ASSERTS), toml.as_bytes()).unwrap();
            copy_sources(&kernels, &copy).map_err(|error| error.to_string())
        };
        build("int b;\n  int a = 1;\n", "work/a.cuh").unwrap();
        let text = files::read_text(&copy.join("work/a.cuh")).unwrap();
        assert_eq!(text, "int b;\n  int a = 1; WARPTILE_ASSERT(a);\n");
        for (text, file, words) in [
            ("int a = 2;\n", "work/a.cuh", "0 lines"),
            ("int a = 1;\n int a = 1;\n", "work/a.cuh", "2 lines"),
            ("int a = 1;\n", "work/b.cuh", "1 asserts name a file"),
        ] {
            let error = build(text, file).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_call_that_computes_has_its_own_arguments_checked() {
        let check = "warptile::check_launch<Instance>";
        for arguments in ["(params)", "(PLAIN)", "(plain_block(params))"] {
            let computes = format!("a_attention<Instance>{arguments}");
            assert_eq!(
                with_calls(&format!("using A = B;\nWARPTILE_IMAGE({computes})\n")),
                format!("using A = B;\nWARPTILE_IMAGE({check}{arguments}; {computes})\n")
            );
            assert_eq!(
                with_calls(&format!(
                    "#define A {computes}\nWARPTILE_IMAGE(warptile::A)\n"
                )),
                format!(
                    "#define A check_launch<Instance>{arguments}; warptile::{computes}\nWARPTILE_IMAGE(warptile::A)\n"
                )
            );
        }
        assert_eq!(with_calls("void f() {}\n"), "void f() {}\n");
    }
}
