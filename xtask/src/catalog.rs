//! The generated Rust of `warptile-kernels`: the catalog, and one type for each tiling.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::instances::{Element, Target};
use crate::manifest::{Manifest, ManifestEntry};
use crate::packs;
use warptile_spec::{ElementType, Features, TileShape, Types};

const HEADER: &str = "// Written by `cargo xtask build-kernels` from manifest.json. Do not edit.\n";

/// The text of `generated/catalog.rs`.
///
/// # Errors
/// A sentence if the manifest holds something that the catalog has no value for.
pub fn catalog(manifest: &Manifest) -> Result<String, String> {
    let mut text = format!(
        "{HEADER}\n// Everything, because with few cargo features few of the names are used.\nuse crate::*;\n\n"
    );
    let mut packs: BTreeMap<&str, String> = BTreeMap::new();
    for entry in &manifest.images {
        packs.insert(&entry.pack, target(entry)?.feature());
    }
    text += "pub(crate) static PACKS: &[&[u8]] = &[\n";
    for (pack, feature) in &packs {
        let _ = writeln!(
            text,
            "    #[cfg(feature = {feature:?})]\n    {},",
            pack_static(pack)
        );
    }
    text += "];\n\npub(crate) static CATALOG: &[Image] = &[\n";
    for entry in &manifest.images {
        text += &image(entry)?;
    }
    text += "];\n";
    Ok(text)
}

/// The text of `generated/packs.rs` in the crate with the images of one of [`packs::ARCHITECTURES`].
///
/// Each static is an array, not a reference to one, so that the catalog refers to it and no other crate has a copy of it.
pub fn packs(architecture: &str, packed_bytes: &BTreeMap<String, u64>) -> String {
    let mut text = "// Written by `cargo xtask build-kernels`. Do not edit.\n".to_owned();
    for (pack, bytes) in packs::of(architecture, packed_bytes) {
        let name = pack.to_ascii_uppercase();
        let file = packs::file_name(pack);
        let _ = writeln!(
            text,
            "\n/// The images of a kernel: `{file}`.\npub static {name}: [u8; {bytes}] = *include_bytes!(\"../../images/{file}\");"
        );
    }
    text
}

/// The text of `generated/tilings.rs`.
///
/// # Errors
/// A sentence if an element type is unknown.
pub fn tilings(manifest: &Manifest) -> Result<String, String> {
    let mut tilings: BTreeMap<String, String> = BTreeMap::new();
    let mut kernels: BTreeMap<(String, String), (String, BTreeSet<String>)> = BTreeMap::new();
    // A tiling names the kernel whose tensors have one element type, and says what its plain images take: another
    // schedule, or what only a variant keeps, may take more.
    let of_tiles = |entry: &&ManifestEntry| {
        let plain = format!("{}_{}_{}", entry.kernel, entry.element, entry.target);
        entry.tiling.has_tiles()
            && Features::from_bits(entry.features)
                .is_some_and(|has| Types::of_image(ElementType::F16, has).scaled().is_none())
            && entry.name == plain
    };
    for entry in manifest.images.iter().filter(of_tiles) {
        let TileShape {
            block_m,
            block_n,
            warps,
            stages,
            k_stride,
            v_stride,
            ..
        } = entry.tiling;
        let [head_dim, of_values] = entry.tiling.dims();
        let (in_name, in_line) = match of_values == head_dim {
            true => (String::new(), String::new()),
            false => (format!("V{of_values}"), format!(" value_dim {of_values}")),
        };
        let name = format!("D{head_dim}{in_name}M{block_m}N{block_n}W{warps}S{stages}");
        tilings.insert(
            name.clone(),
            format!(
                "    {name}: head_dim {head_dim}{in_line}, tile {block_m} x {block_n}, warps {warps}, stages {stages};\n"
            ),
        );
        let strides = match (k_stride, v_stride) {
            (0, 0) => String::new(),
            _ => format!(", k_stride {k_stride}, v_stride {v_stride}"),
        };
        let bytes = element(entry)?.size();
        kernels
            .entry((entry.family.clone(), name))
            .or_insert_with(|| (entry.kernel.clone(), BTreeSet::new()))
            .1
            .insert(format!(
                "        {bytes}: shared {}{strides};\n",
                entry.dynamic_shared_bytes
            ));
    }
    let mut text = format!("{HEADER}\ntilings! {{\n");
    tilings.values().for_each(|line| text += line);
    text += "}\n\nkernels! {\n";
    for ((family, tiling), (kernel, layouts)) in &kernels {
        let _ = writeln!(text, "    {} {tiling} {kernel:?} {{", variant(family));
        layouts.iter().for_each(|line| text += line);
        text += "    }\n";
    }
    text += "}\n";
    Ok(text)
}

fn image(entry: &ManifestEntry) -> Result<String, String> {
    let target = target(entry)?;
    let kind = match (target.ptx, target.exact) {
        (true, _) => "Ptx",
        (false, true) => "CubinExact",
        (false, false) => "Cubin",
    };
    let json = serde_json::to_value(entry).map_err(|error| error.to_string())?;
    // Numbers and strings are written in JSON as in Rust.
    let fields = |names: &str| {
        let names = names.split(' ');
        let fields: Vec<String> = names
            .map(|name| format!("{name}: {}", json[name]))
            .collect();
        fields.join(", ")
    };
    Ok(format!(
        "    #[cfg(feature = {:?})]\n    \
         Image {{ {}, family: Family::{}, \
         role: Role::from_number({}).unwrap(), schedule: Schedule::from_number({}).unwrap(), \
         features: Features::from_bits({:#x}).unwrap(), target: Target::{kind}({}), element: ElementType::{}, \
         tiling: TileShape {{ {} }}, resources: Resources {{ {} }}, abi_hash: 0x{}, {}, pack: {}, {} }},\n",
        target.feature(),
        fields("name kernel entry"),
        variant(&entry.family),
        entry.role,
        entry.schedule,
        entry.features,
        target.number,
        variant(&entry.element),
        fields(&entry.tiling.fields().map(|(name, _)| name).join(" ")),
        fields(
            "registers stack_bytes spill_bytes static_shared_bytes dynamic_shared_bytes tensor_instructions"
        ),
        entry.abi_hash,
        fields("param_bytes toolchain source_hash sha256"),
        pack_static(&entry.pack),
        fields("offset len"),
    ))
}

fn target(entry: &ManifestEntry) -> Result<Target, String> {
    entry
        .target
        .parse()
        .map_err(|error| format!("{}: {error}", entry.name))
}

fn element(entry: &ManifestEntry) -> Result<Element, String> {
    let unknown = |_| format!("{}: unknown element type {}", entry.name, entry.element);
    entry.element.parse().map_err(unknown)
}

/// A reference to the static that holds a pack.
fn pack_static(pack: &str) -> String {
    let (architecture, name) = (packs::architecture(pack), pack.to_ascii_uppercase());
    format!("&warptile_images_{architecture}::{name}")
}

/// `f16` is the variant `F16`, `wgmma` is `Wgmma`.
fn variant(name: &str) -> String {
    name[..1].to_ascii_uppercase() + &name[1..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn the_committed_catalog_is_what_the_manifest_generates() {
        let layout = crate::build_kernels::Layout::of_repository(&files::repository_root());
        let manifest: Manifest = files::read_json(&layout.manifest()).unwrap();
        for (name, text) in [
            ("catalog.rs", catalog(&manifest)),
            ("tilings.rs", tilings(&manifest)),
        ] {
            let committed = files::read_text(&layout.generated(name)).unwrap();
            assert!(text.unwrap() == committed, "{name}");
        }
    }
}
