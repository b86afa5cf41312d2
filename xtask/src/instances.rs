//! `kernels/instances.toml`: the one list of what gets compiled, expanded into images.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::de::IntoDeserializer as _;
use serde::{Deserialize, Serialize};
use warptile_spec::{Family, TileShape};

use crate::evolve::archive::Genes;
use crate::evolve::rules::Rule;
use crate::files;

pub use crate::target::Target;

/// Element type of the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// binary16
    F16,
    /// bfloat16
    Bf16,
    /// binary32
    F32,
}

impl Element {
    fn cpp_name(self) -> &'static str {
        match self {
            Element::F16 => "__half",
            Element::Bf16 => "__nv_bfloat16",
            Element::F32 => "float",
        }
    }

    /// Size in bytes.
    pub fn size(self) -> u32 {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::F32 => 4,
        }
    }
}

/// The tensor-core instruction a family must have in its machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum TensorInstruction {
    /// No tensor-core instruction is required.
    #[default]
    #[serde(rename = "")]
    None,
    /// `HMMA`, of wmma and mma.sync.
    #[serde(rename = "HMMA")]
    Hmma,
    /// `HGMMA`, of wgmma.
    #[serde(rename = "HGMMA")]
    Hgmma,
}

/// The requirements on the machine code of a family; part of what the gates hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expectations {
    /// Tensor-core instruction that must occur.
    pub tensor_instruction: TensorInstruction,
    /// True if `USETMAXREG` must occur.
    pub setmaxnreg: bool,
    /// True if registers may be spilled: in debug images, whose asserts need some.
    pub may_spill: bool,
}

/// The numbers of a family's tilings that `cargo xtask evolve` may vary, within `rules`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Query rows, in ascending order.
    pub block_m: Vec<u32>,
    /// Keys, likewise.
    pub block_n: Vec<u32>,
    /// Warps of the CTA, likewise.
    pub warps: Vec<u32>,
    /// K/V tiles in flight, likewise.
    pub stages: Vec<u32>,
    /// Compiler flags that a candidate has or has not.
    #[serde(default)]
    pub switches: Vec<String>,
    /// The rules for the numbers; the kernel's source asserts it, too.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

impl Knobs {
    /// The values that each number may have.
    pub(crate) fn values(&self) -> [&[u32]; 4] {
        [&self.block_m, &self.block_n, &self.warps, &self.stages]
    }

    /// Returns true if the rules hold.
    pub(crate) fn allow(&self, genes: &Genes) -> bool {
        { self.rules.iter() }.all(|rule| rule.holds(&|name| genes.value(name)))
    }
}

/// One row of `tilings`. A kernel without tiles has only `warps`; the other numbers are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TilingRow {
    /// Head size of the tile.
    #[serde(default)]
    pub head_dim: u32,
    /// The head size of values, if it differs.
    value_dim: Option<u32>,
    /// Query rows.
    #[serde(default)]
    pub block_m: u32,
    /// Keys.
    #[serde(default)]
    pub block_n: u32,
    /// Warps of the CTA.
    pub warps: u32,
    /// K/V tiles in flight.
    #[serde(default)]
    pub stages: u32,
    /// In place of the family's elements.
    elements: Option<Vec<Element>>,
    /// In place of the family's targets.
    targets: Option<Vec<Target>>,
    /// After the family's flags.
    #[serde(default)]
    flags: Vec<String>,
    /// Besides the plain image, one for each of these.
    #[serde(default)]
    variants: Vec<String>,
    /// False if there is no plain image.
    plain: Option<bool>,
    /// Targets of a variant, if not all of the row's.
    #[serde(default)]
    variant_targets: BTreeMap<String, Vec<Target>>,
    /// Warps of a variant, if not those of the row.
    #[serde(default)]
    variant_warps: BTreeMap<String, u32>,
    /// Element type of keys and values, if it is not that of the other tensors.
    cache: Option<String>,
}

impl TilingRow {
    /// The row of a tile.
    pub fn of(head_dim: u32, [block_m, block_n, warps, stages]: [u32; 4]) -> Self {
        Self {
            head_dim,
            block_m,
            block_n,
            warps,
            stages,
            ..Self::default()
        }
    }

    /// Head size of values.
    pub fn value_dim(&self) -> u32 {
        self.value_dim.unwrap_or(self.head_dim)
    }

    /// The tile that a record should have: the numbers of the row, and the others as the record has them.
    pub(crate) fn in_record(&self, record: &TileShape) -> TileShape {
        TileShape {
            block_m: self.block_m,
            block_n: self.block_n,
            head_dim: self.head_dim,
            value_dim: self.value_dim(),
            stages: self.stages,
            warps: self.warps,
            ..*record
        }
    }

    /// Returns true if keys and values have one head size.
    pub(crate) fn has_one_size(&self) -> bool {
        self.value_dim() == self.head_dim
    }

    fn of_tile(&self) -> [u32; 4] {
        [self.head_dim, self.block_m, self.block_n, self.stages]
    }

    /// Returns true if the kernel computes in tiles.
    fn has_tiles(&self) -> bool {
        self.of_tile().iter().any(|&number| number > 0)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Element {
    type Err = serde::de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(text.into_deserializer())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InstancesFile {
    #[serde(default)]
    family: Vec<FamilyDeclaration>,
}

/// A family's declaration, for tools that make instances which no row lists.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyDeclaration {
    /// Name of the family.
    pub name: String,
    source: String,
    elements: Vec<Element>,
    targets: Vec<Target>,
    #[serde(default)]
    tensor_instruction: TensorInstruction,
    #[serde(default)]
    setmaxnreg: bool,
    #[serde(default)]
    flags: Vec<String>,
    tilings: Vec<TilingRow>,
    /// The numbers that may vary; `None` if none may.
    pub knobs: Option<Knobs>,
}

impl FamilyDeclaration {
    /// An instance with the flags of its row. Its kernel's name ends in `suffix`, if there is one.
    pub fn instance(
        &self,
        tiling: TilingRow,
        element: Element,
        variant: Option<String>,
        target: Target,
        suffix: Option<String>,
        flags: &[String],
    ) -> Instance {
        Instance {
            family: self.name.clone(),
            source: self.source.clone(),
            tiling,
            element,
            variant,
            target,
            suffix,
            extra_flags: [&self.flags[..], flags].concat(),
            expectations: Expectations {
                // Those of these families take no f32.
                tensor_instruction: match element {
                    Element::F32 => TensorInstruction::None,
                    _ => self.tensor_instruction,
                },
                setmaxnreg: self.setmaxnreg,
                may_spill: false,
            },
        }
    }
}

/// The macro whose value is the name of a variant.
const VARIANT: &str = "WARPTILE_VARIANT";

/// One image to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Family name.
    pub family: String,
    /// Source file, relative to `kernels/`.
    pub source: String,
    /// Tile shape.
    pub tiling: TilingRow,
    /// Element type.
    pub element: Element,
    /// `None` for the plain image.
    pub variant: Option<String>,
    /// The target to compile for.
    pub target: Target,
    /// End of the kernel's name, of an instance that is not for the catalog.
    pub suffix: Option<String>,
    /// Flags of the family, then of the row.
    pub extra_flags: Vec<String>,
    /// The requirements on its machine code.
    pub expectations: Expectations,
}

impl Instance {
    /// `{family}_{tiling}`, without tiles `{family}_w{warps}`; with `_{type}` behind it for keys and values of
    /// another type, and `v{size}` behind the head size for values of another one.
    pub fn kernel(&self) -> String {
        let tiling = &self.tiling;
        // So that the images of a kernel follow each other in the order of their names.
        let cache = tiling.cache.iter().map(|cache| format!("_{cache}"));
        let cache: String = cache.collect();
        let values = { tiling.value_dim.map(|size| format!("v{size}")) }.unwrap_or_default();
        let mut name = match tiling.has_tiles() {
            false => format!("{}{cache}_w{}", self.family, tiling.warps),
            true => format!(
                "{}_d{}{values}_{}x{}_w{}_s{}{cache}",
                self.family,
                tiling.head_dim,
                tiling.block_m,
                tiling.block_n,
                tiling.warps,
                tiling.stages
            ),
        };
        if let Some(suffix) = &self.suffix {
            name += &format!("_{suffix}");
        }
        name
    }

    /// `{kernel}_{element}_{target}`, of a variant `{kernel}_{element}_{variant}_{target}`.
    pub fn image(&self) -> String {
        format!("{}_{}", self.function(), self.target)
    }

    /// Name of the entry function.
    pub fn entry(&self) -> String {
        format!("warptile_{}", self.function())
    }

    fn function(&self) -> String {
        let mut name = format!("{}_{}", self.kernel(), self.element);
        if let Some(variant) = &self.variant {
            name += &format!("_{variant}");
        }
        name
    }

    /// The macros that say to the source which variant this is, and of what type keys and values are.
    fn macros(&self) -> impl Iterator<Item = String> {
        let named = [("VARIANT", &self.variant), ("CACHE", &self.tiling.cache)];
        { named.into_iter() }.filter_map(|(kind, name)| {
            Some(format!("WARPTILE_{kind}_{}", name.as_ref()?.to_uppercase()))
        })
    }

    /// The macro whose value says which variant this is, for a source that has a type for each.
    fn variant_type(&self) -> Option<String> {
        let variant = self.variant.as_ref()?;
        Some(format!("{VARIANT}={}", variant.to_uppercase()))
    }

    /// Checks that the source, in `kernels`, asks for each of its [`macros`](Self::macros), or for that of variants' types: else this would
    /// be the plain image by another name.
    fn check_macros(&self, kernels: &Path) -> Result<()> {
        for name in self.macros() {
            let source = files::read_text(&kernels.join(&self.source))?;
            let asked = source.lines().any(|line| {
                line.starts_with('#')
                    && line
                        .split(|c: char| c != '_' && !c.is_alphanumeric())
                        .any(|word| word == name || word == VARIANT)
            });
            ensure!(
                asked,
                "instances.toml: {} knows no {name}, which {} needs",
                self.source,
                self.image()
            );
        }
        Ok(())
    }

    /// Compiler flags apart from include paths.
    pub fn flags(&self) -> Vec<String> {
        let tiling = &self.tiling;
        let mut flags = vec![
            "-std=c++17".to_owned(),
            format!("--gpu-architecture={}", self.target),
            "--ptxas-options=-v".to_owned(),
            format!("-DWARPTILE_ELEMENT={}", self.element.cpp_name()),
        ];
        let tile = [
            ("HEAD_DIM", tiling.head_dim),
            ("VALUE_DIM", tiling.value_dim.unwrap_or_default()),
            ("BLOCK_M", tiling.block_m),
            ("BLOCK_N", tiling.block_n),
            ("WARPS", tiling.warps),
            ("STAGES", tiling.stages),
        ];
        let given = tile.into_iter().filter(|&(_, number)| number > 0);
        flags.extend(given.map(|(name, number)| format!("-DWARPTILE_{name}={number}")));
        flags.push(format!("-DWARPTILE_ENTRY={}", self.entry()));
        let macros = self.macros().chain(self.variant_type());
        flags.extend(macros.map(|name| format!("-D{name}")));
        flags.extend(self.extra_flags.iter().cloned());
        flags
    }
}

/// Reads `instances.toml` into images ordered by name.
///
/// # Errors
/// If the file is missing or malformed, describes an image twice, or has a variant that the kernel's source next to it does not know.
pub fn load(path: &Path) -> Result<Vec<Instance>> {
    let instances = parse(&files::read_text(path)?)?;
    let kernels = path.parent().unwrap_or(path);
    { instances.iter() }.try_for_each(|one| one.check_macros(kernels))?;
    Ok(instances)
}

fn malformed(error: toml::de::Error) -> anyhow::Error {
    anyhow!("instances.toml: {error}")
}

fn unknown_family(name: &str) -> String {
    format!(
        "instances.toml: unknown family `{name}`; a new one also needs a row in the spec's `Family`"
    )
}

/// Reads the declaration of one family from `instances.toml`.
///
/// # Errors
/// If the file is missing or malformed, or has no such family.
pub fn declaration(path: &Path, family: &str) -> Result<FamilyDeclaration> {
    let file: InstancesFile = toml::from_str(&files::read_text(path)?).map_err(malformed)?;
    let mut families = file.family.into_iter();
    let found = families.find(|one| one.name == family);
    found.with_context(|| unknown_family(family))
}

/// Reads the text of `instances.toml`.
///
/// # Errors
/// If it is malformed, or describes an image twice.
pub fn parse(text: &str) -> Result<Vec<Instance>> {
    let file: InstancesFile = toml::from_str(text).map_err(malformed)?;
    let mut instances = Vec::new();
    for family in file.family {
        let name = &family.name;
        let is_known = Family::ALL.iter().any(|family| family.name() == name);
        ensure!(is_known, unknown_family(name));
        for tiling in &family.tilings {
            ensure!(
                !tiling.has_tiles() || !tiling.of_tile().contains(&0),
                "instances.toml: a row of `{name}` needs all of head_dim, block_m, block_n and stages, or none if its kernel has no tiles"
            );
            for &element in tiling.elements.as_ref().unwrap_or(&family.elements) {
                for &target in tiling.targets.as_ref().unwrap_or(&family.targets) {
                    let has = |variant: &&String| {
                        let targets = tiling.variant_targets.get(*variant);
                        targets.is_none_or(|targets| targets.contains(&target))
                    };
                    let variants = tiling.variants.iter().filter(has).cloned().map(Some);
                    let plain = tiling.plain.unwrap_or(true).then_some(None);
                    instances.extend(plain.into_iter().chain(variants).map(|variant| {
                        let (mut tiling, flags) = (tiling.clone(), &tiling.flags);
                        let own = variant.as_ref().and_then(|of| tiling.variant_warps.get(of));
                        tiling.warps = own.copied().unwrap_or(tiling.warps);
                        family.instance(tiling, element, variant, target, None, flags)
                    }));
                }
            }
        }
    }
    let mut names = BTreeSet::new();
    for instance in &instances {
        let image = instance.image();
        ensure!(
            names.insert(image.clone()),
            "instances.toml: two rows make the image `{image}`; remove one"
        );
    }
    instances.sort_by_cached_key(Instance::image);
    Ok(instances)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    const FAMILY: &str = r#"
        [[family]]
        name = "wmma"
        source = "wmma.cu"
        elements = ["f16", "bf16"]
        targets = ["sm_80", "sm_90a", "compute_80"]
        tensor_instruction = "HMMA"
        flags = ["--maxrregcount=128"]
        tilings = [
            { head_dim = 64, block_m = 32, block_n = 64, warps = 4, stages = 2 },
            { head_dim = 128, block_m = 48, block_n = 32, warps = 8, stages = 1, elements = ["f16"], targets = ["sm_80"], flags = ["-DX"] },
        ]
    "#;

    #[test]
    fn rows_expand_to_named_images() {
        let instances = parse(FAMILY).unwrap();
        let names: Vec<_> = instances.iter().map(Instance::image).collect();
        assert_eq!(
            names,
            [
                "wmma_d128_48x32_w8_s1_f16_sm_80",
                "wmma_d64_32x64_w4_s2_bf16_compute_80",
                "wmma_d64_32x64_w4_s2_bf16_sm_80",
                "wmma_d64_32x64_w4_s2_bf16_sm_90a",
                "wmma_d64_32x64_w4_s2_f16_compute_80",
                "wmma_d64_32x64_w4_s2_f16_sm_80",
                "wmma_d64_32x64_w4_s2_f16_sm_90a",
            ]
        );
        let features: Vec<String> = instances[1..4]
            .iter()
            .map(|instance| instance.target.feature())
            .collect();
        assert_eq!(features, ["ptx", "sm_80", "sm_90"]);
        assert_eq!(instances[0].extra_flags, ["--maxrregcount=128", "-DX"]);
        assert_eq!(instances[1].entry(), "warptile_wmma_d64_32x64_w4_s2_bf16");
        assert_eq!(
            instances[0].expectations.tensor_instruction,
            TensorInstruction::Hmma
        );
    }

    #[test]
    fn a_kernel_without_tiles_has_warps_alone() {
        let merge = FAMILY.replace("\"wmma\"", "\"merge\"").replace(
            "head_dim = 64, block_m = 32, block_n = 64, warps = 4, stages = 2",
            "warps = 4",
        );
        let instances = parse(&merge).unwrap();
        let one = instances
            .iter()
            .find(|one| !one.tiling.has_tiles())
            .unwrap();
        assert_eq!(one.image(), "merge_w4_bf16_compute_80");
        assert!(one.flags().contains(&"-DWARPTILE_WARPS=4".to_owned()));
        assert!(!one.flags().iter().any(|flag| flag.contains("BLOCK_M")));
        let half = FAMILY.replace("block_m = 32, ", "");
        assert!(
            parse(&half)
                .unwrap_err()
                .to_string()
                .contains("needs all of")
        );
    }

    #[test]
    fn variants_may_have_targets_of_their_own() {
        let row =
            "stages = 2, variants = [\"dropout\"], variant_targets = { dropout = [\"sm_90a\"] } }";
        let images = |text: &str| -> BTreeSet<String> {
            parse(text).unwrap().iter().map(Instance::image).collect()
        };
        let (plain, with) = (images(FAMILY), images(&FAMILY.replace("stages = 2 }", row)));
        assert!(plain.is_subset(&with));
        assert!(
            with.difference(&plain)
                .all(|name| name.ends_with("_dropout_sm_90a"))
        );
        assert!(with.len() > plain.len());
    }

    #[test]
    fn a_row_may_have_variants_alone() {
        let images = |row: &str| -> BTreeSet<String> {
            let instances = parse(&FAMILY.replace("stages = 2 }", row)).unwrap();
            instances.iter().map(Instance::image).collect()
        };
        let both = images("stages = 2, variants = [\"tensors\"] }");
        let alone = images("stages = 2, plain = false, variants = [\"tensors\"] }");
        let gone: Vec<_> = both.difference(&alone).collect();
        assert!(alone.is_subset(&both) && !gone.is_empty());
        assert!(gone.iter().all(|name| !name.contains("tensors")));
    }

    #[test]
    fn variants_may_have_warps_of_their_own() {
        let row = "stages = 2, variants = [\"dropout\"], variant_warps = { dropout = 8 } }";
        let instances = parse(&FAMILY.replace("stages = 2 }", row)).unwrap();
        for one in instances.iter().filter(|one| one.tiling.head_dim == 64) {
            let is_variant = one.image().contains("_dropout_");
            assert_eq!(one.tiling.warps, if is_variant { 8 } else { 4 });
            assert_eq!(one.image().contains("_w8_"), is_variant);
        }
    }

    #[test]
    fn a_variant_is_one_more_image_of_its_kernel() {
        let row = "stages = 2, variants = [\"tensors\"] }";
        let instances = parse(&FAMILY.replace("stages = 2 }", row)).unwrap();
        let both: Vec<&Instance> = instances
            .iter()
            .filter(|one| one.element == Element::F16 && one.target.to_string() == "sm_90a")
            .collect();
        let names: Vec<_> = both.iter().map(|one| one.image()).collect();
        assert_eq!(
            names,
            [
                "wmma_d64_32x64_w4_s2_f16_sm_90a",
                "wmma_d64_32x64_w4_s2_f16_tensors_sm_90a"
            ]
        );
        assert_eq!(both[0].kernel(), both[1].kernel());
        assert_eq!(both[1].entry(), "warptile_wmma_d64_32x64_w4_s2_f16_tensors");
        let flags: Vec<bool> = both
            .iter()
            .map(|one| {
                one.flags()
                    .iter()
                    .any(|flag| flag == "-DWARPTILE_VARIANT_TENSORS")
            })
            .collect();
        assert_eq!(flags, [false, true]);
        let kernels = tempfile::tempdir().unwrap();
        let source = kernels.path().join("wmma.cu");
        for (text, known) in [("TENSORS", true), ("TENSORS_TOO", false), ("TENS", false)] {
            files::write(
                &source,
                format!("#ifdef WARPTILE_VARIANT_{text}\n").as_bytes(),
            )
            .unwrap();
            both[0].check_macros(kernels.path()).unwrap();
            assert_eq!(
                both[1].check_macros(kernels.path()).is_ok(),
                known,
                "{text}"
            );
        }
    }

    #[test]
    fn every_listed_image_is_committed_and_no_other() {
        let listed: BTreeSet<String> = parse(include_str!("../../kernels/instances.toml"))
            .unwrap()
            .iter()
            .map(Instance::image)
            .collect();
        let manifest = include_str!("../../crates/kernels/manifest.json");
        let manifest: Manifest = serde_json::from_str(manifest).unwrap();
        let committed: BTreeSet<String> = manifest
            .images
            .into_iter()
            .map(|image| image.name)
            .collect();
        let missing: Vec<_> = listed.difference(&committed).collect();
        let superfluous: Vec<_> = committed.difference(&listed).collect();
        assert!(!listed.is_empty());
        assert!(missing.is_empty(), "not committed: {missing:?}");
        assert!(superfluous.is_empty(), "not listed: {superfluous:?}");
    }

    #[test]
    fn values_of_another_head_size_are_in_the_name() {
        let row = "head_dim = 64, value_dim = 32,";
        let instances = parse(&FAMILY.replace("head_dim = 64,", row)).unwrap();
        let one = instances.iter().find(|one| one.tiling.head_dim == 64);
        let one = one.unwrap();
        assert_eq!(one.kernel(), "wmma_d64v32_32x64_w4_s2");
        assert_eq!(one.tiling.value_dim(), 32);
        assert!(one.flags().contains(&"-DWARPTILE_VALUE_DIM=32".to_owned()));
        let other = parse(FAMILY).unwrap();
        assert!(
            other
                .iter()
                .all(|one| one.tiling.value_dim() == one.tiling.head_dim)
        );
        let flags = other.iter().flat_map(Instance::flags);
        assert!(!flags.into_iter().any(|flag| flag.contains("VALUE_DIM")));
    }

    #[test]
    fn an_image_listed_twice_is_refused() {
        let twice = format!("{FAMILY}{FAMILY}");
        assert!(
            parse(&twice)
                .unwrap_err()
                .to_string()
                .contains("two rows make")
        );
    }

    #[test]
    fn unknown_families_targets_and_keys_are_refused() {
        let family = parse(&FAMILY.replace("\"wmma\"", "\"wmna\"")).unwrap_err();
        assert!(family.to_string().contains("wmna"), "{family}");
        let target = parse(&FAMILY.replace("\"sm_90a\"", "\"sm_91\"")).unwrap_err();
        assert!(target.to_string().contains("sm_91"), "{target}");
        let key = parse(&FAMILY.replace("tensor_instruction", "tensor_instructions")).unwrap_err();
        assert!(key.to_string().contains("tensor_instructions"), "{key}");
    }
}
