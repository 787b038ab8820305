//! Whole trips through the engines, from host memory to host memory: queries, range joins, and the crossover between
//! CPU and GPU. Single kernels are measured by the binary `rmq-bench`.
//!
//! `cargo bench -p rmq-bench --bench trips -- --measure trip,crossover,join`; without an NVIDIA GPU only the CPU is
//! measured. A wrong answer is an error.

#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    clippy::single_match_else,
    clippy::unchecked_time_subtraction,
    reason = "sizes and times are far from every limit; `n`, `l` and `r` are the paper's names"
)]

mod crossover;
mod join;
mod limits;
mod run;
mod trip;

use std::error::Error;

use clap::Parser;
use rmq_bench::kinds::EngineKind;
use rmq_engine::cuda::{CudaEngine, CudaOptions};

use crate::limits::Limits;
use crate::run::{Args, Measure, Run};

fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::new(Args::parse().with_defaults());
    let measures = run.args.measure.clone();
    // Before the engine opens the device, whose memory they need.
    let limits = measures.contains(&Measure::Join) && run.args.uses(EngineKind::Cuda);
    let limits = limits.then(|| Limits::measure(run.args.device).ok());
    let cuda = open_cuda(&run.args);
    for measure in measures {
        match measure {
            Measure::Trip => trip::measure(&mut run, cuda.as_ref())?,
            Measure::Crossover => crossover::measure(&mut run, cuda.as_ref())?,
            Measure::Join => join::measure(&mut run, cuda.as_ref(), limits.flatten())?,
        }
    }
    run.progress.finish();
    for table in &run.tables {
        print!("\n{table}");
    }
    Ok(())
}

/// Opens the CUDA engine, if it is to be measured and there is a device.
fn open_cuda(args: &Args) -> Option<CudaEngine> {
    let options = CudaOptions {
        devices: vec![args.device],
        ..CudaOptions::default()
    };
    args.uses(EngineKind::Cuda)
        .then(|| CudaEngine::open(&options).ok())
        .flatten()
}
