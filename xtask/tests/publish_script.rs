//! `scripts/publish.sh` and `scripts/check_versions.sh`, with a cargo and a registry that are scripts.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use xtask::files;

/// One package a workspace. PUBLISHED names those that the registry has; what is uploaded is appended to `uploaded`.
const CARGO: &str = r#"#!/bin/bash
name=$(sed -n 's/^# package //p' Cargo.toml) version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
case $1 in
metadata)
    echo '{"workspace_members": ["a"], "packages": [{"id": "a", "source": null, "publish": null,'
    echo "\"name\": \"$name\", \"version\": \"$version\", \"manifest_path\": \"$PWD/Cargo.toml\"}]}"
    ;;
info) [[ " $PUBLISHED " == *" ${*: -1} "* ]] ;;
package) printf '%s\n' .cargo_vcs_info.json Cargo.lock Cargo.toml Cargo.toml.orig lib.rs ;;
publish) [[ " $* " == *' --dry-run '* ]] || echo "$name $version" >>"$ROOT/uploaded" ;;
*) exit 9 ;;
esac
"#;

/// Packs what `registry` has of a package.
const CURL: &str = r#"#!/bin/bash
crate=${*: -1} crate=${crate##*/}
exec tar -czC "$ROOT/registry" "${crate%.crate}"
"#;

struct Tree {
    directory: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Tree {
            directory: tempfile::tempdir().unwrap(),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for path in [
            "scripts/publish.sh",
            "scripts/check_versions.sh",
            "integrations/candle/for-candle.sh",
        ] {
            tree.write(path, &std::fs::read_to_string(root.join(path)).unwrap());
            files::make_executable(&tree.path(path)).unwrap();
        }
        for (path, text) in [("bin/cargo", CARGO), ("bin/curl", CURL)] {
            tree.write(path, text);
            files::make_executable(&tree.path(path)).unwrap();
        }
        let candle = "candle-core = \"0.11.1\"\nwarptile = { path = \"../../crates\", version = \"0.2.3\" }\n";
        for (folder, package, version, text) in [
            (
                "",
                "warptile",
                "0.2.3",
                "warptile-spec = { path = \"\", version = \"=0.2.3\" }\n",
            ),
            ("integrations/", "warptile-cudarc", "0.2.3", ""),
            (
                "integrations/candle/",
                "warptile-candle",
                "0.11.10203",
                candle,
            ),
        ] {
            let head =
                format!("# package {package}\n[workspace.package]\nversion = \"{version}\"\n\n");
            tree.write(&format!("{folder}Cargo.toml"), &(head + text));
            tree.write(&format!("{folder}lib.rs"), "fn new() {}\n");
        }
        for part in [
            ".cargo",
            "candle-kernels",
            "stand-in",
            "warptile-candle",
            "warptile-candle-v3",
        ] {
            let path = format!("integrations/candle/{part}");
            tree.write(&format!("{path}/Cargo.toml"), "version = \"0.11.1\"\n");
            tree.write(&format!("{path}/README.md"), "version = \"0.11\"\n");
            tree.write(&format!("{path}/src/lib.rs"), "//! \"0.11.10203\"\n");
        }
        tree.write(
            "docs/candle.md",
            "warptile-candle = { version = \"0.11.10203\" }\n",
        );
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        files::write(&self.path(name), text.as_bytes()).unwrap();
    }

    fn replace(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from), "{name}: {text}");
        self.write(name, &text.replace(from, to));
    }

    fn run(&self, script: &str, arguments: &[&str], published: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        Command::new(self.path(script))
            .args(arguments)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("ROOT", self.directory.path())
            .env("PUBLISHED", published)
            .output()
            .unwrap()
    }

    /// What `publish.sh` uploads, and what it says that is wrong.
    fn publish(&self, published: &str) -> (Vec<String>, String) {
        let _ = std::fs::remove_file(self.path("uploaded"));
        let output = self.run("scripts/publish.sh", &[], published);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), errors.is_empty(), "{errors}");
        let uploaded = std::fs::read_to_string(self.path("uploaded")).unwrap_or_default();
        (uploaded.lines().map(str::to_owned).collect(), errors)
    }

    /// Sets Warptile's version everywhere, and that of the candle packages.
    fn release(&self, version: &str, of_candle: &str) {
        for name in ["", "integrations/", "integrations/candle/"] {
            let manifest = format!("{name}Cargo.toml");
            let text = std::fs::read_to_string(self.path(&manifest)).unwrap();
            let text = text
                .replace("0.2.3", version)
                .replace("0.11.10203", of_candle);
            self.write(&manifest, &text);
        }
        self.replace("docs/candle.md", "0.11.10203", of_candle);
    }
}

const ALL: [&str; 5] = [
    "warptile 0.2.3",
    "warptile-cudarc 0.2.3",
    "warptile-candle 0.9.20203",
    "warptile-candle 0.10.20203",
    "warptile-candle 0.11.10203",
];

#[test]
fn each_release_has_candle_packages_of_its_own() {
    let tree = Tree::new();
    let (uploaded, errors) = tree.publish("");
    assert_eq!(uploaded, ALL, "{errors}");
    let before = ALL.map(|package| package.replace(' ', "@")).join(" ");
    tree.release("0.2.4", "0.11.10204");
    let (uploaded, errors) = tree.publish(&before);
    let expected = ALL.map(|package| package.replace("0.2.3", "0.2.4").replace("0203", "0204"));
    assert_eq!(uploaded, expected, "{errors}");
}

#[test]
fn the_workspace_for_another_candle_names_it() {
    let tree = Tree::new();
    let to = tree.path("for");
    let arguments = ["0.10.2", to.to_str().unwrap()];
    let output = tree.run("integrations/candle/for-candle.sh", &arguments, "");
    assert!(output.status.success(), "{output:?}");
    let text = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
    let manifest = text("Cargo.toml");
    assert!(
        manifest.contains("\nversion = \"0.10.20203\"\n"),
        "{manifest}"
    );
    assert!(
        manifest.contains("candle-core = \"0.10.2\"\n"),
        "{manifest}"
    );
    assert_eq!(text("candle-kernels/Cargo.toml"), "version = \"0.10.2\"\n");
    assert_eq!(text("warptile-candle/README.md"), "version = \"0.10\"\n");
    assert_eq!(text("warptile-candle/src/lib.rs"), "//! \"0.10.20203\"\n");
    for (warptile, candle) in [
        ("1.0.0", "0.11.1"),
        ("0.100.0", "0.11.1"),
        ("0.2.3", "0.11"),
    ] {
        let tree = Tree::new();
        tree.replace(
            "Cargo.toml",
            "\nversion = \"0.2.3\"",
            &format!("\nversion = \"{warptile}\""),
        );
        let output = tree.run(
            "integrations/candle/for-candle.sh",
            &["--version", candle],
            "",
        );
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

/// After a failure half-way the rest is published. What is there must be of the same source.
#[test]
fn published_packages_have_the_files_that_are_here() {
    let tree = Tree::new();
    let there = |file: &str, text: &str| {
        tree.write(&format!("registry/warptile-cudarc-0.2.3/{file}"), text)
    };
    let manifest = std::fs::read_to_string(tree.path("integrations/Cargo.toml")).unwrap();
    there("Cargo.toml", "normalised");
    there("Cargo.toml.orig", &manifest);
    there(".cargo_vcs_info.json", "{}");
    there("lib.rs", "fn new() {}\n");
    let (uploaded, errors) = tree.publish("warptile-cudarc@0.2.3");
    assert_eq!(uploaded, [ALL[0], ALL[2], ALL[3], ALL[4]], "{errors}");
    let differs = |file: &str| {
        let (uploaded, errors) = tree.publish("warptile-cudarc@0.2.3");
        let words = format!(
            "warptile-cudarc 0.2.3 is published with another {file}: it needs a new version"
        );
        assert!(errors.contains(&words), "{errors}");
        assert_eq!(uploaded, ALL[..1]);
    };
    there("lib.rs", "fn old() {}\n");
    differs("lib.rs");
    std::fs::remove_file(tree.path("registry/warptile-cudarc-0.2.3/lib.rs")).unwrap();
    differs("lib.rs");
    there("lib.rs", "fn new() {}\n");
    there("gone.rs", "");
    differs("gone.rs");
    // After a release, files change before the version does.
    let output = tree.run(
        "scripts/publish.sh",
        &["--dry-run"],
        "warptile-cudarc@0.2.3",
    );
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_version_that_was_forgotten_is_named() {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check_versions.sh");
    let output = Command::new(real).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let tree = Tree::new();
    let check = |tag: &[&str]| {
        let output = tree.run("scripts/check_versions.sh", tag, "");
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(check(&["v0.2.3"]), (Some(0), String::new()));
    let (code, errors) = check(&["v0.2.4"]);
    assert_eq!(
        (code, &*errors),
        (Some(1), "error: the tag has v0.2.4, not v0.2.3\n")
    );
    for (file, from, to, words) in [
        (
            "integrations/Cargo.toml",
            "\"0.2.3\"",
            "\"0.2.2\"",
            "integrations/Cargo.toml has 0.2.2, not 0.2.3",
        ),
        (
            "Cargo.toml",
            "=0.2.3",
            "=0.2.2",
            "Cargo.toml: warptile-spec has 0.2.2, not 0.2.3",
        ),
        (
            "integrations/candle/Cargo.toml",
            "\"0.2.3\"",
            "\"0.2.2\"",
            "Cargo.toml: warptile has 0.2.2, not 0.2.3",
        ),
        (
            "integrations/candle/Cargo.toml",
            "10203",
            "10202",
            "candle/Cargo.toml has 0.11.10202, not 0.11.10203",
        ),
        (
            "docs/candle.md",
            "10203",
            "10202",
            "docs/candle.md: warptile-candle has 0.11.10202, not 0.11.10203",
        ),
    ] {
        tree.replace(file, from, to);
        let (code, errors) = check(&[]);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains(words), "{errors}");
        let (uploaded, errors) = tree.publish("");
        assert!(uploaded.is_empty() && errors.contains(words), "{errors}");
        tree.replace(file, to, from);
    }
}
