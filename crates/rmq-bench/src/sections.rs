//! The sections of a run, in their order.

use std::error::Error;

use rmq_engine::cuda::{CudaEngine, CudaOptions};

use crate::args::{Args, EngineKind, Measure};
use crate::lab::device::Lab;
use crate::run::Run;
use crate::{cpu, crossover, gpu, key_search, model, succinct, trip};

/// Measures all sections that `args` name.
pub fn measure(args: Args) -> Result<Run, Box<dyn Error>> {
    let mut run = Run::new(args);
    let lab = open_lab(&mut run);
    if run.args.measures(Measure::Search) && run.args.uses(EngineKind::Cpu) {
        cpu::measure(&mut run)?;
    }
    if run.args.measures(Measure::Succinct) && run.args.uses(EngineKind::Cpu) {
        succinct::measure(&mut run)?;
    }
    if let Some(lab) = &lab {
        if run.args.measures(Measure::Reads) {
            model::measure_groups(&mut run, lab)?;
        }
        gpu::measure(&mut run, lab)?;
    }
    if run.args.measures(Measure::Keys) {
        let cuda = open_cuda(&run.args);
        key_search::measure(&mut run, lab.as_ref(), cuda.as_ref())?;
    }
    // The engine opens the device again and needs its memory.
    drop(lab);
    if run.args.measures(Measure::Trip) || run.args.measures(Measure::Crossover) {
        let cuda = open_cuda(&run.args);
        if run.args.measures(Measure::Trip) {
            trip::measure(&mut run, cuda.as_ref())?;
        }
        if run.args.measures(Measure::Crossover) {
            crossover::measure(&mut run, cuda.as_ref())?;
        }
    }
    run.progress.finish();
    Ok(run)
}

/// Opens the device for measurements of single kernels, if it is wanted and there is one, and describes it.
fn open_lab(run: &mut Run) -> Option<Lab> {
    if !run.args.uses(EngineKind::Cuda) {
        return None;
    }
    match Lab::open(run.args.device) {
        Ok(lab) => {
            let copy = lab.copy_speed().unwrap_or(0.0) / 1e12;
            let device = lab.describe();
            run.machine.push(format!(
                "GPU: {device}, copies {copy:.2} TB/s (read and written)"
            ));
            Some(lab)
        }
        Err(error) => {
            run.machine
                .push(format!("GPU: none, only the CPU was measured: {error}"));
            run.progress.say(&format!("no GPU is measured: {error}"));
            None
        }
    }
}

/// Opens the CUDA engine, if it is wanted and there is a device.
fn open_cuda(args: &Args) -> Option<CudaEngine> {
    let options = CudaOptions {
        devices: vec![args.device],
        ..CudaOptions::default()
    };
    args.uses(EngineKind::Cuda)
        .then(|| CudaEngine::open(&options).ok())
        .flatten()
}
