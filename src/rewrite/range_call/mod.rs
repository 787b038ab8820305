//! TODO

pub(crate) mod calls;
pub(crate) mod frame_call;
pub(crate) mod scalar_call;
