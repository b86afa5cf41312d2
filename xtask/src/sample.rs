//! `build-kernels --check --sample`: what is compiled again, and what can be said of the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::files;
use crate::instances::Instance;
use crate::manifest::ManifestEntry;
use crate::packs::Packs;
use crate::sources::Sources;

/// The smallest image of each family and target, and a fortieth of the others, chosen by `seed`.
///
/// A PTX image and the machine code of the same number come from one compilation, so they are chosen together where that is
/// possible: both go by the machine code's size and name.
pub(crate) fn sample(
    selected: &[Instance],
    seed: &str,
    committed: &BTreeMap<String, ManifestEntry>,
) -> Vec<Instance> {
    let compiled_as = |instance: &Instance| Instance {
        target: instance.target.real(),
        ..instance.clone()
    };
    let len = |instance: &Instance| committed.get(&instance.image()).map(|entry| entry.len);
    let mut smallest: BTreeMap<_, (usize, &Instance)> = BTreeMap::new();
    for instance in selected {
        let len = len(&compiled_as(instance)).or_else(|| len(instance));
        let len = len.unwrap_or(usize::MAX);
        let group = (instance.family.clone(), instance.target);
        let best = smallest.entry(group).or_insert((len, instance));
        if len < best.0 {
            *best = (len, instance);
        }
    }
    let smallest: BTreeSet<String> = { smallest.values() }
        .map(|(_, instance)| instance.image())
        .collect();
    let (mut sampled, others): (Vec<&Instance>, Vec<_>) =
        { selected.iter() }.partition(|instance| smallest.contains(&instance.image()));
    let mut shuffled: Vec<(String, &Instance)> = others
        .into_iter()
        .map(|instance| {
            let text = format!("{seed} {}", compiled_as(instance).image());
            (files::sha256(text.as_bytes()), instance)
        })
        .collect();
    // Stable: of the images of one compilation, neither is preferred.
    shuffled.sort_by(|a, b| a.0.cmp(&b.0));
    let fortieth = shuffled.len().div_ceil(40);
    sampled.extend(shuffled.iter().take(fortieth).map(|(_, instance)| instance));
    sampled.into_iter().cloned().collect()
}

/// The checks of images that are not compiled: whether they are committed, of these sources, and undamaged.
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
