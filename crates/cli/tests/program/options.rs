//! The README's table of options, held against what is planned.

use crate::common::{root, run, warptile};
use std::fs;

/// The rows of the table, and what a problem says in their place.
const OPTIONS: [(&str, &[&str]); 15] = [
    ("masks", &["mask=causal", "mask=window,100,3"]),
    ("softcap", &["softcap=30"]),
    ("ALiBi", &["alibi=head"]),
    ("sinks", &["sinks"]),
    ("bias", &["bias"]),
    ("bias in `f32`", &["bias=f32"]),
    ("key mask", &["keymask", "keymask=padding"]),
    (
        "lengths, packed sequences",
        &["lengths=ragged", "packed=256x256,100x200"],
    ),
    ("rows that start anywhere", &["unaligned"]),
    ("dropout", &["dropout=0.1"]),
    ("lists of blocks", &["blocks=64x128"]),
    ("pages", &["pages=64"]),
    ("e4m3 cache", &["cache=e4m3"]),
    ("`Splits::EveryKeys`", &["splits=256"]),
    ("head sizes above 256", &["d512"]),
];

/// Whether some kernel of the GPU takes the problem; none if such a problem cannot be written down.
fn has_kernel(gpu: &str, words: &[&str]) -> Option<bool> {
    let text = words.join(" ");
    let mut problem = format!("h4/2 {text}");
    if !text.contains("packed=") {
        problem += " b2 q256 k256";
    }
    if !text.contains("d512") {
        problem += " d128";
    }
    let (code, _, stderr) = run(warptile().args(["plan", &problem, "--gpu", gpu]));
    match (code, stderr.contains("no kernel takes")) {
        (0, _) => Some(true),
        (_, true) => Some(false),
        // What has no gradients is refused before kernels are looked at.
        _ if words.contains(&"backward") => Some(false),
        _ => None,
    }
}

#[test]
fn the_readme_says_what_kernels_take() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| option | f16, bf16 |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.split('|').skip(1).map(str::trim).collect())
        .collect();
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, OPTIONS.map(|(name, _)| name));

    for (row, (name, words)) in rows.iter().zip(OPTIONS) {
        for (gpu, element) in [
            ("a100", "f16"),
            ("h100", "f16"),
            ("h100", "bf16"),
            ("h100", "f32"),
            ("b200", "bf16"),
            ("rtx5090", "f32"),
        ] {
            let says = |cell: &str| match cell {
                "yes" => true,
                "no" => false,
                "of `f32`" => element == "f32",
                "not of `f32`" => element != "f32",
                other => panic!("{name}: {other}"),
            };
            let cell = row[if element == "f32" { 2 } else { 1 }];
            for word in words {
                let found = has_kernel(gpu, &[word, element]);
                assert_eq!(found, Some(says(cell)), "{word} {element} on {gpu}");
                let found = has_kernel(gpu, &[word, element, "backward"]);
                assert_eq!(
                    found,
                    Some(says(row[3])),
                    "{word} {element} backward on {gpu}"
                );
            }
        }
    }

    let mut wrong = Vec::new();
    for (i, (first, of_first)) in OPTIONS.iter().enumerate() {
        for (j, (second, of_second)) in OPTIONS.iter().enumerate().take(i) {
            let names = |row: &[&str], other: &str| row[4].split(", ").any(|one| one == other);
            let apart = names(&rows[i], second) || names(&rows[j], first);
            for gpu in ["a100", "h100", "b200", "rtx5090"] {
                let alone = |word: &&str| has_kernel(gpu, &[*word, "f16"]) == Some(true);
                for one in of_first.iter().filter(|one| alone(one)) {
                    let found = { of_second.iter() }
                        .filter(|other| alone(other))
                        .filter_map(|other| has_kernel(gpu, &[*one, *other, "f16"]));
                    if found.into_iter().any(|found| found == apart) {
                        wrong.push(format!("{first} with {second} on {gpu}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not as the README says: {wrong:?}");
}
