//! TODO

pub(crate) mod nested_loop;
pub(crate) mod on_devices;
pub(crate) mod prevailing;
pub(crate) mod side;
pub(crate) mod stream;
