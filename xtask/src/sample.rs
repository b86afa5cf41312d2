//! `build-kernels --check --sample`: what is compiled again, and what can be said of the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::files;
use crate::instances::Instance;
use crate::manifest::ManifestEntry;
use crate::packs::Packs;
use crate::sources::Sources;

/// The first image of each family, element and target, and every tenth of the others, in an order that follows from `seed`.
pub(crate) fn sample(selected: &[Instance], seed: &str) -> Vec<Instance> {
    let mut shuffled: Vec<(String, &Instance)> = selected
        .iter()
        .map(|instance| {
            let text = format!("{seed} {}", instance.image());
            (files::sha256(text.as_bytes()), instance)
        })
        .collect();
    shuffled.sort_by(|a, b| a.0.cmp(&b.0));
    let mut seen = BTreeSet::new();
    let mut others = 0;
    shuffled
        .into_iter()
        .filter(|(_, instance)| {
            let first = seen.insert((instance.family.clone(), instance.element, instance.target));
            others += usize::from(!first);
            first || others % 10 == 0
        })
        .map(|(_, instance)| instance.clone())
        .collect()
}

/// What can be said of the images that are not compiled: whether they are committed, of these sources, and undamaged.
pub(crate) fn unsampled_differences(
    selected: &[Instance],
    compiled: &[Instance],
    compiler_version: &str,
    sources: &BTreeMap<String, Sources>,
    committed: &BTreeMap<String, ManifestEntry>,
    packs: &Packs,
) -> Vec<String> {
    let compiled: BTreeSet<String> = compiled.iter().map(Instance::image).collect();
    let mut differences = Vec::new();
    for instance in selected {
        let name = instance.image();
        if compiled.contains(&name) {
            continue;
        }
        let Some(entry) = committed.get(&name) else {
            differences.push(format!("{name}: not committed"));
            continue;
        };
        let hash = sources
            .get(&instance.source)
            .map(|source| source.hash(instance, compiler_version));
        if hash.as_ref() != Some(&entry.source_hash) {
            differences.push(format!(
                "{name}: source_hash is {:?} committed, {:?} now",
                entry.source_hash,
                hash.unwrap_or_default()
            ));
        } else if let Err(why) = packs.image(entry) {
            differences.push(format!("{name}: {why}"));
        }
    }
    differences
}
