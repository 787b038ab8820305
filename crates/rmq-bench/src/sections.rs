//! The sections of a run, in their order.

use std::error::Error;

use rmq_engine::EngineError;

use crate::args::{Args, Measure};
use crate::lab::device::Lab;
#[cfg(feature = "rt")]
use crate::ray;
use crate::run::Run;
use crate::{cpu, gpu, kernels, reads, succinct};
use rmq_bench::kinds::EngineKind;

/// Measures all sections that `args` name.
pub fn measure(args: Args) -> Result<Run, Box<dyn Error>> {
    let mut run = Run::new(args);
    let lab = open_lab(&mut run);
    let on_cpu = run.args.uses(EngineKind::Cpu);
    // The paper's figures have the CPU's engine beside the succinct indexes.
    let search_on_cpu = on_cpu && run.args.measures(Measure::Search) && !run.args.paper;
    let succinct = on_cpu && run.args.measures(Measure::Succinct);
    if search_on_cpu {
        run.progress.expect(cpu::steps(&run));
    }
    if succinct {
        run.progress.expect(succinct::steps(&run));
    }
    if lab.is_some() {
        run.progress.expect(kernels::steps(&run.args));
    }
    if lab.is_some() && run.args.measures(Measure::Reads) {
        run.progress.expect(reads::STEPS);
    }
    if search_on_cpu {
        cpu::measure(&mut run)?;
    }
    if succinct {
        succinct::measure(&mut run)?;
    }
    if let Some(lab) = &lab {
        if run.args.measures(Measure::Reads) {
            reads::measure(&mut run, lab)?;
        }
        gpu::measure(&mut run, lab)?;
    }
    // Vulkan opens the device again and needs its memory.
    drop(lab);
    if run.args.measures(Measure::Rays) {
        measure_rays(&mut run);
    }
    run.progress.finish();
    Ok(run)
}

#[cfg(feature = "rt")]
fn measure_rays(run: &mut Run) {
    ray::measure::measure(run);
}

#[cfg(not(feature = "rt"))]
fn measure_rays(run: &mut Run) {
    let skipped = "Vulkan: skipped: built without the feature `rt`";
    run.progress.say(skipped);
    run.machine.push(skipped.to_owned());
}

/// Opens the device for measurements of single kernels, if one is selected and there is one, and describes it.
fn open_lab(run: &mut Run) -> Option<Lab> {
    if !run.args.uses(EngineKind::Cuda) {
        return None;
    }
    match Lab::open(run.args.device) {
        Ok(lab) => {
            let device = lab.describe();
            run.origin.gpu.clone_from(&device);
            run.origin.clock_mhz = lab.clock_mhz().unwrap_or(0);
            let copy = (!run.args.quick).then(|| lab.copy_speed().unwrap_or(0.0) / 1e12);
            let copy = copy.map_or_else(String::new, |speed| {
                format!(", copies {speed:.2} TB/s (read and written)")
            });
            run.machine.push(format!("GPU: {device}{copy}"));
            Some(lab)
        }
        Err(error) => {
            let skipped = match error {
                EngineError::NoDevice { why } => format!("skipped: no CUDA device ({why})"),
                error => format!("skipped: {error}"),
            };
            run.progress.say(&format!("GPU: {skipped}"));
            run.machine.push(format!("GPU: {skipped}"));
            None
        }
    }
}
