//! One run of the compiler after the other: from instances to images that passed the gates.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::build_kernels::{Compiler, Failure, Layout, Progress};
use crate::compile::{self, Request, Worker};
use crate::files;
use crate::gates::{self, Facts};
use crate::inspect::{self, LogReport, SassCounts};
use crate::instances::{Expectations, Instance, Target};
use crate::manifest::ManifestEntry;
use crate::sources::{GENERATED, Sources};
use crate::toolchain::Toolchain;
use warptile_spec::record::ImageRecord;

/// One run of the compiler: the machine code of a kernel for one element type and architecture, the PTX that the compiler
/// makes on the way there, or both. NVRTC's PTX is the same whether it goes on to machine code or not.
#[derive(Debug, Clone)]
struct Unit {
    /// The instance as compiled, with the real architecture as target.
    real: Instance,
    /// Images wanted from it.
    wanted: Vec<Instance>,
}

/// A finished image, not yet in a pack.
pub(crate) struct Built {
    pub(crate) entry: ManifestEntry,
    pub(crate) image: Vec<u8>,
}

fn units(stale: &[Instance]) -> Vec<Unit> {
    let mut units: BTreeMap<(String, Target), Unit> = BTreeMap::new();
    for instance in stale {
        let real = Instance {
            target: instance.target.real(),
            ..instance.clone()
        };
        units
            .entry((real.image(), real.target))
            .or_insert_with(|| Unit {
                real,
                wanted: Vec::new(),
            })
            .wanted
            .push(instance.clone());
    }
    units.into_values().collect()
}

/// Compiles the stale images. Returns the built ones, and those that failed to compile or failed a gate.
pub(crate) fn compile_all(
    layout: &Layout,
    compiler: &Compiler,
    sources: &BTreeMap<String, Sources>,
    stale: &[Instance],
    progress: &dyn Progress,
) -> Result<(Vec<Built>, Vec<Failure>)> {
    let scratch = tempfile::tempdir().map_err(files::failed(
        "create a directory in",
        &std::env::temp_dir(),
    ))?;
    let units = units(stale);
    progress.begin(units.len());
    let results = compile::in_parallel(
        &units,
        compiler.jobs,
        || None,
        |worker, unit| {
            let source = sources.get(&unit.real.source);
            let result = source.map_or_else(
                || Err(vec![format!("{} was not read", unit.real.source)]),
                |source| build_unit(layout, compiler, source, unit, scratch.path(), worker),
            );
            progress.finished(&unit.real.image());
            result.map_err(|reasons| Failure {
                image: unit
                    .wanted
                    .iter()
                    .map(Instance::image)
                    .collect::<Vec<_>>()
                    .join(", "),
                reasons,
            })
        },
    );
    let mut built = Vec::new();
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(images) => built.extend(images),
            Err(failure) => failures.push(failure),
        }
    }
    Ok((built, failures))
}

fn build_unit(
    layout: &Layout,
    compiler: &Compiler,
    source: &Sources,
    unit: &Unit,
    scratch: &Path,
    worker: &mut Option<Worker>,
) -> Result<Vec<Built>, Vec<String>> {
    let instance = &unit.real;
    let request = request(layout, &compiler.toolchain, source, instance, scratch);
    let mut running = match worker.take() {
        Some(running) => running,
        None => Worker::start(&compiler.worker, &compiler.toolchain.nvrtc).map_err(|error| {
            one(format!(
                "cannot start {}: {error}",
                compiler.worker.display()
            ))
        })?,
    };
    // A worker that failed is dropped here; the next unit starts another.
    let answer = running.compile(&request).map_err(one)?;
    *worker = Some(running);
    let log = answer.log.map_err(one)?;

    let facts = facts(compiler, instance, &request, &log)?;
    let violations = gates::violations(instance, &facts);
    if !violations.is_empty() {
        return Err(violations);
    }
    let record = facts.record.as_ref().map_err(one)?;
    { unit.wanted.iter() }
        .map(|wanted| finish(compiler, source, wanted, &request, &facts, record))
        .collect()
}

/// The one reason why an image is not built.
fn one(reason: impl ToString) -> Vec<String> {
    vec![reason.to_string()]
}

/// The compiler is asked with a relative name and sees absolute paths only as include directories, so an image does not
/// depend on where the repository lies.
fn request(
    layout: &Layout,
    toolchain: &Toolchain,
    source: &Sources,
    instance: &Instance,
    scratch: &Path,
) -> Request {
    let include = |path: &Path| format!("--include-path={}", path.display());
    let mut options = instance.flags();
    options.push(include(&layout.kernels));
    options.push(include(&layout.kernels.join(GENERATED)));
    options.extend(toolchain.includes.iter().map(|path| include(path)));
    Request {
        source: source.text.clone(),
        name: instance.source.clone(),
        options,
        output: scratch.join(instance.image()),
    }
}

fn facts(
    compiler: &Compiler,
    instance: &Instance,
    request: &Request,
    log: &str,
) -> Result<Facts, Vec<String>> {
    let cubin = files::read(&request.cubin()).map_err(one)?;
    let entry = instance.entry();
    let sass = if instance.expectations == Expectations::default() {
        SassCounts::default()
    } else {
        SassCounts::of_file(&compiler.toolchain.nvdisasm, &request.cubin()).map_err(one)?
    };
    Ok(Facts {
        log: LogReport::parse(log),
        record: ImageRecord::read(&cubin),
        has_entry: inspect::has_entry(&cubin, &entry).map_err(one)?,
        parameter_sizes: inspect::parameter_sizes(&cubin, &entry).map_err(one)?,
        sass,
    })
}

fn finish(
    compiler: &Compiler,
    source: &Sources,
    instance: &Instance,
    request: &Request,
    facts: &Facts,
    record: &ImageRecord,
) -> Result<Built, Vec<String>> {
    let path = if instance.target.ptx {
        request.ptx()
    } else {
        request.cubin()
    };
    let image = files::read(&path).map_err(one)?;
    // The machine code of a PTX image is made by the driver and is not known here.
    let machine = |value: u32| if instance.target.ptx { 0 } else { value };
    Ok(Built {
        entry: ManifestEntry {
            name: instance.image(),
            kernel: instance.kernel(),
            entry: instance.entry(),
            family: instance.family.clone(),
            role: record.role.number(),
            schedule: record.schedule.number(),
            features: record.features.bits(),
            target: instance.target.to_string(),
            element: instance.element.to_string(),
            tiling: record.tiling,
            registers: machine(facts.log.registers),
            stack_bytes: machine(facts.log.stack_bytes),
            spill_bytes: machine(facts.log.spill_store_bytes + facts.log.spill_load_bytes),
            static_shared_bytes: facts.log.static_shared_bytes,
            dynamic_shared_bytes: record.shared_bytes,
            tensor_instructions: machine(facts.sass.hmma + facts.sass.hgmma),
            abi_hash: format!("{:016x}", record.abi_hash),
            param_bytes: record.param_bytes,
            toolchain: compiler.toolchain.version.clone(),
            flags: instance.flags().join(" "),
            source_hash: source.hash(instance, &compiler.toolchain.version),
            sha256: files::sha256(&image),
            // Known once the packs are put together.
            pack: String::new(),
            offset: 0,
            len: image.len(),
        },
        image,
    })
}
