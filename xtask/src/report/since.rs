//! Measurements with images that have since been compiled again, into other machine code.

use std::collections::HashSet;

use super::bench::BenchRow;
use crate::manifest::ManifestEntry;

/// A text about rows, and behind it how many of their images have changed since, if any has. `images`: those of now.
pub(super) fn noted<'a>(
    text: String,
    rows: impl IntoIterator<Item = &'a BenchRow>,
    images: &[ManifestEntry],
) -> String {
    note(text, rows, images.iter().map(|image| image.sha256.as_str()))
}

fn note<'a, 'b>(
    text: String,
    rows: impl IntoIterator<Item = &'a BenchRow>,
    now: impl Iterator<Item = &'b str>,
) -> String {
    let now: HashSet<&str> = now.collect();
    let of_images: Vec<&BenchRow> = rows
        .into_iter()
        .filter(|row| row.sha256.is_some())
        .collect();
    let has_changed = |row: &&&BenchRow| {
        let mut images = row.sha256.iter().chain(&row.other_images);
        images.any(|image| !now.contains(&image[..]))
    };
    let changed = of_images.iter().filter(has_changed).count();
    match changed {
        0 => text,
        _ => format!(
            "{}\n\n**Measured before a change of kernels**: the images of {changed} of our {} rows are other machine code now.\n",
            text.trim_end(),
            of_images.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::bench::tests::row;
    use super::*;

    #[test]
    fn rows_of_images_that_have_changed_are_counted() {
        let now = || ["new", "same"].into_iter();
        let measured = |sha256: Option<&str>| BenchRow {
            sha256: sha256.map(str::to_owned),
            ..row("warptile", 64, 512, 1.0)
        };
        let rows = [
            measured(Some("same")),
            measured(Some("old")),
            measured(None),
        ];
        let text = note("A table.\n".to_owned(), &rows, now());
        assert!(text.starts_with("A table.\n\n**Measured before"), "{text}");
        assert!(text.contains("of 1 of our 2 rows"), "{text}");
        assert_eq!(
            note("A table.\n".to_owned(), &rows[..1], now()),
            "A table.\n"
        );
        // The second of two kernels.
        let mut gradients = measured(Some("same"));
        gradients.other_images = vec!["new".to_owned(), "old".to_owned()];
        let text = note("A table.\n".to_owned(), [&gradients], now());
        assert!(text.contains("of 1 of our 1 rows"), "{text}");
    }
}
