//! `warptile info`: what this machine has, and what would run on it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Value, json};
use warptile::plan::{Choice, DeviceProfile, Plan, Planner, Rates, Reason};
use warptile::spec::{Call, Scoring};
use warptile::{ElementType, Error, Layout, Mask};
use warptile_distributed::nccl_sys;
use warptile_driver::{Device as CudaDevice, Driver};
use warptile_kernels::{Family, Image, catalog, packs};

use crate::cases;
use crate::failure::Failure;
use crate::json;
use crate::machine;
use crate::options::Device;
use crate::text::{self, say};

/// Show the driver, the devices, the embedded kernels, and which of them would be chosen.
///
/// Works without a GPU: the driver's absence is then part of the answer, not an error.
#[derive(Debug, Args)]
#[command(after_help = cases::examples(&[
    "info",
    "info --kernels",
    "info --json -",
]))]
pub(crate) struct InfoArgs {
    /// List every kernel with its resources
    #[arg(long)]
    kernels: bool,

    /// Print the whole plan of each sample problem, with the reason for every kernel not chosen
    #[arg(long)]
    explain: bool,

    /// Write driver, devices and catalog to this file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// Problems that `info` plans: (element, head size, mask). Each has batch 2, 8 heads and 512 rows.
const SAMPLES: [(ElementType, usize, Mask); 6] = [
    (ElementType::F16, 64, Mask::none()),
    (ElementType::F16, 64, Mask::causal()),
    (ElementType::F16, 128, Mask::none()),
    (ElementType::Bf16, 128, Mask::causal()),
    (ElementType::Bf16, 256, Mask::none()),
    (ElementType::F32, 64, Mask::none()),
];

/// The JSON that `--json` writes.
#[derive(Debug, Serialize)]
struct Info {
    /// The CUDA version of the driver; `null` without a driver.
    driver: Option<String>,
    /// The reason why no driver was found.
    driver_error: Option<String>,
    /// The file the driver was loaded from.
    library: Option<String>,
    /// NCCL's version and file; `null` without it, and where there are not several devices.
    nccl: Option<String>,
    /// The reason why NCCL was not found.
    nccl_error: Option<String>,
    date: String,
    cpu_threads: usize,
    devices: Vec<DeviceInfo>,
    images: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct DeviceInfo {
    ordinal: u32,
    name: String,
    compute_capability: String,
    multiprocessors: u32,
    shared_bytes_per_cta: u32,
    memory_bytes: usize,
    pci_bus_id: String,
    /// The other devices whose memory kernels and copies of this one reach.
    reaches: Vec<u32>,
    /// Which rates are in force, and why the user's own are not.
    rates: String,
    #[serde(skip)]
    profile: DeviceProfile,
    #[serde(skip)]
    in_force: Rates,
}

/// An image in the JSON that `--json` writes. `role` is what it is for: `forward`, or an operation other than attention;
/// `schedule` is how tiles come to CTAs, and `shared_bytes` the dynamic shared memory of a CTA.
fn image_json(image: &Image) -> Value {
    json!({
        "image": image.name,
        "kernel": image.kernel,
        "family": image.family.to_string(),
        "role": image.role.to_string(),
        "schedule": image.schedule.to_string(),
        "features": Vec::from_iter(image.features.iter().map(|one| one.to_string())),
        "element": image.element.to_string(),
        "target": image.target.to_string(),
        "sha256": image.sha256,
        "bytes": image.len,
        "shared_bytes": image.resources.dynamic_shared_bytes,
    })
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let info = gather(&Driver::load())?;
    print_machine(&info, console)?;
    writeln!(console, "auto     {}", Device::Auto.open()?)?;
    print_catalog(args.kernels, console)?;
    print_choices(&info, args.explain, console)?;
    json::write(&args.json, &info)
}

/// Prints the facts about the machine that a bug report needs.
pub(crate) fn print_machine_of_report(console: &mut dyn Write) -> Result<(), Failure> {
    match gather(&Driver::load()) {
        Ok(info) => print_machine(&info, console),
        // The report is then about this failure.
        Err(failure) => Ok(writeln!(console, "driver   failed: {failure}")?),
    }
}

/// Driver, CPU and devices.
fn print_machine(info: &Info, console: &mut dyn Write) -> Result<(), Failure> {
    let driver = match (&info.driver, &info.driver_error) {
        (Some(version), _) => {
            let library = info.library.as_deref().unwrap_or_default();
            format!("driver   {version}, {library}")
        }
        (None, error) => format!("driver   none: {}", error.as_deref().unwrap_or_default()),
    };
    say!(console, "{driver}")?;
    writeln!(console, "cpu      {} threads", info.cpu_threads)?;
    for device in &info.devices {
        say!(
            console,
            "cuda:{:<3} {}, compute capability {}, {} multiprocessors, {:.1} GiB",
            device.ordinal,
            device.name,
            device.compute_capability,
            device.multiprocessors,
            device.memory_bytes as f64 / f64::from(1 << 30)
        )?;
        say!(console, "rates    {}", device.rates)?;
        if info.devices.len() > 1 {
            say!(console, "reaches  {}", reached(&device.reaches))?;
        }
    }
    match (&info.nccl, &info.nccl_error) {
        (Some(nccl), _) => say!(console, "nccl     {nccl}")?,
        (None, Some(error)) => say!(console, "nccl     none: {error}")?,
        (None, None) => {}
    }
    Ok(())
}

/// The devices whose memory a device reaches: calls over several GPUs need them.
fn reached(devices: &[u32]) -> String {
    let names: Vec<_> = devices.iter().map(|at| format!("cuda:{at}")).collect();
    match names.is_empty() {
        true => "the memory of no other device".to_owned(),
        false => format!("the memory of {}", names.join(", ")),
    }
}

/// The rates of a device that are in force, and where they are from.
fn rates_in_force(profile: &DeviceProfile, driver: &str) -> (Rates, String) {
    let embedded = Rates::embedded(profile);
    let built_in = match embedded.device() == profile.name {
        true => format!("measured on {}, built in", embedded.device()),
        false => format!(
            "modelled: those of {}, built in; `warptile tune` measures this GPU",
            embedded.device()
        ),
    };
    match Rates::of_user(profile, driver) {
        Ok(None) => (embedded.clone(), built_in),
        Err(error) => {
            let error = text::message(&error.to_string());
            (embedded.clone(), format!("{built_in}; {error}"))
        }
        Ok(Some(rates)) => {
            let path = Rates::user_file(&profile.name).unwrap_or_default();
            let from = format!(
                "{}: {} kernels measured, {} problems tuned",
                text::path(&path),
                rates.measured_kernels(),
                rates.chosen_problems()
            );
            (rates, from)
        }
    }
}

fn gather(driver: &warptile_driver::Result<Driver>) -> Result<Info, Failure> {
    let mut info = Info {
        driver: None,
        driver_error: None,
        library: None,
        nccl: None,
        nccl_error: None,
        date: machine::utc(std::time::SystemTime::now()),
        cpu_threads: machine::threads(),
        devices: Vec::new(),
        images: catalog().iter().map(image_json).collect(),
    };
    match driver {
        Err(error) => info.driver_error = Some(error.to_string()),
        Ok(driver) => {
            info.driver = Some(format!("CUDA {}", driver.version()));
            info.library = Some(driver.library().display().to_string());
            let devices = driver.devices().map_err(Error::from)?;
            for device in &devices {
                info.devices.push(describe(device, &devices)?);
            }
            if devices.len() > 1 {
                match nccl_sys::load() {
                    Ok(nccl) => {
                        let library = nccl.library().display();
                        info.nccl = Some(format!("{}, {library}", nccl.version()));
                    }
                    Err(error) => info.nccl_error = Some(error.to_string()),
                }
            }
        }
    }
    Ok(info)
}

fn describe(device: &CudaDevice, all: &[CudaDevice]) -> warptile::Result<DeviceInfo> {
    let mut reaches = Vec::new();
    for other in all {
        if other.ordinal() != device.ordinal() && device.can_access_peer(other)? {
            reaches.push(other.ordinal());
        }
    }
    let profile = DeviceProfile::of(device)?;
    let driver = format!("CUDA {}", device.driver().version());
    let (in_force, rates) = rates_in_force(&profile, &driver);
    Ok(DeviceInfo {
        ordinal: device.ordinal(),
        name: profile.name.clone(),
        compute_capability: format!("{}.{}", profile.major, profile.minor),
        multiprocessors: profile.multiprocessors,
        shared_bytes_per_cta: profile.shared_bytes_per_cta,
        memory_bytes: device.total_memory()?,
        pci_bus_id: device.pci_bus_id()?,
        reaches,
        rates,
        profile,
        in_force,
    })
}

/// A plain table that fits the terminal. The first columns keep their width, so that no name is broken.
fn table(header: &[&str], whole: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header)
        .set_constraints(std::iter::repeat_n(ColumnConstraint::ContentWidth, whole));
    if let Ok(width) = u16::try_from(text::columns()) {
        table.set_width(width);
    }
    table
}

/// `items` in order, without repeats, separated by blanks.
fn joined<T: Ord + ToString>(items: impl Iterator<Item = T>) -> String {
    let distinct: BTreeSet<T> = items.collect();
    let words: Vec<String> = distinct.iter().map(T::to_string).collect();
    words.join(" ")
}

fn print_catalog(every_kernel: bool, console: &mut dyn Write) -> Result<(), Failure> {
    let images = catalog();
    let packed: usize = packs().map(<[u8]>::len).sum();
    writeln!(
        console,
        "catalog  {} images, {:.1} MB embedded\n",
        images.len(),
        packed as f64 / 1e6
    )?;
    if images.is_empty() {
        return Ok(());
    }
    let group = |key: &dyn Fn(&Image) -> String| {
        let mut groups: BTreeMap<(Family, String), Vec<&Image>> = BTreeMap::new();
        for image in images {
            groups
                .entry((image.family, key(image)))
                .or_default()
                .push(image);
        }
        groups
    };
    let elements = |images: &[&Image]| joined(images.iter().map(|image| image.element));
    let targets = |images: &[&Image]| joined(images.iter().map(|image| image.target));
    if every_kernel {
        let header = ["kernel", "elements", "targets", "registers", "shared bytes"];
        let mut table = table(&header, 1);
        for ((_, kernel), images) in group(&|image| image.kernel.to_owned()) {
            table.add_row([
                kernel,
                elements(&images),
                targets(&images),
                joined(images.iter().map(|image| image.resources.registers)),
                joined(
                    images
                        .iter()
                        .map(|image| image.resources.dynamic_shared_bytes),
                ),
            ]);
        }
        writeln!(console, "{table}\n")?;
    } else {
        let header = [
            "family",
            "kernels",
            "elements",
            "head sizes up to",
            "targets",
        ];
        let mut table = table(&header, 3);
        for ((family, _), images) in group(&|_| String::new()) {
            let kernels: BTreeSet<&str> = images.iter().map(|image| image.kernel).collect();
            table.add_row([
                family.to_string(),
                kernels.len().to_string(),
                elements(&images),
                match images.iter().any(|image| image.tiling.has_tiles()) {
                    true => joined(images.iter().map(|image| image.tiling.head_dim)),
                    false => "any".to_owned(),
                },
                targets(&images),
            ]);
        }
        writeln!(console, "{table}\n")?;
    }
    Ok(())
}

fn print_choices(info: &Info, explain: bool, console: &mut dyn Write) -> Result<(), Failure> {
    if info.devices.is_empty() {
        writeln!(
            console,
            "chosen   cpu, for every problem: there is no GPU to choose a kernel for"
        )?;
        return Ok(());
    }
    for device in &info.devices {
        writeln!(
            console,
            "chosen on cuda:{} (batch 2, 8 heads, 512 rows)",
            device.ordinal
        )?;
        let header = [
            "element",
            "head size",
            "mask",
            "kernel",
            "why no higher family",
        ];
        let mut table = table(&header, 4);
        for (element, head_dim, mask) in SAMPLES {
            let layout = Layout::bshd([2, 512, 8, head_dim]);
            let call = Call::builder(&layout, &layout, &layout, element)
                .scoring(Scoring::new().mask(mask))
                .build()?;
            let planner = Planner::new(&device.profile).rates(&device.in_force);
            let plan = planner.plan(call.problem(), &Choice::Best);
            let (kernel, why) = match plan {
                Ok(plan) => {
                    if explain {
                        for line in plan.explain().lines() {
                            say!(console, "{line}")?;
                        }
                        writeln!(console)?;
                    }
                    (plan.kernel_name().to_owned(), why_not_better(&plan))
                }
                Err(error) => ("none".to_owned(), error.to_string()),
            };
            table.add_row([
                element.to_string(),
                head_dim.to_string(),
                mask.to_string(),
                kernel,
                why,
            ]);
        }
        writeln!(console, "{table}\n")?;
    }
    Ok(())
}

/// For each family above the chosen one, why none of its kernels was chosen: how much longer the fastest one that
/// applies would take, or why none does.
fn why_not_better(plan: &Plan) -> String {
    let family_of = |kernel: &str| {
        let mut images = catalog().iter();
        images
            .find(|image| image.kernel == kernel)
            .map(|image| image.family)
    };
    let chosen = plan.image().map(|image| image.family);
    let mut reasons: BTreeMap<Family, Vec<&Reason>> = BTreeMap::new();
    for considered in plan.considered() {
        if let Some(family) = family_of(considered.kernel)
            && Some(family) > chosen
        {
            reasons.entry(family).or_default().push(&considered.reason);
        }
    }
    let lines: Vec<String> = reasons
        .into_iter()
        .map(|(family, reasons)| format!("{family}: {}", why_none_of(&reasons)))
        .collect();
    lines.join("\n")
}

fn why_none_of(reasons: &[&Reason]) -> String {
    let times = reasons.iter().filter_map(|reason| match reason {
        Reason::Slower { times } => Some(*times),
        _ => None,
    });
    if let Some(times) = times.min_by(f64::total_cmp) {
        return Reason::Slower { times }.to_string();
    }
    let different: BTreeSet<String> = reasons.iter().map(ToString::to_string).collect();
    Vec::from_iter(different).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_family_the_fastest_kernel_that_applies_or_what_none_can() {
        let [slow, fast] = [3.0, 2.0].map(|times| Reason::Slower { times });
        let narrow = Reason::HeadDim { laid_out_for: 64 };
        let text = why_none_of(&[&slow, &narrow, &fast]);
        assert_eq!(text, "applies, expected to take 2.00 times as long");
        let f32 = Reason::Element(ElementType::F32);
        let text = why_none_of(&[&narrow, &f32, &narrow]);
        assert_eq!(
            text,
            "its tiles hold head sizes up to 64; not compiled for f32"
        );
    }

    #[test]
    fn only_higher_families_are_named() {
        let h200 = DeviceProfile::h200();
        let layout = Layout::bshd([2, 512, 8, 64]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F16);
        let call = call.build().unwrap();
        let planner = Planner::new(&h200).rates(Rates::embedded(&h200));
        let plan = planner.plan(call.problem(), &Choice::Best).unwrap();
        assert_eq!(plan.image().unwrap().family, Family::Wgmma);
        let why = why_not_better(&plan);
        assert!(
            why.starts_with("decode: applies") && !why.contains('\n'),
            "{why}"
        );
    }
}
