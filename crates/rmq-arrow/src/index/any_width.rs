//! What there is of keys in one of their three widths.

/// Something of keys of 32, of 64 or of 128 bits.
#[derive(Debug, Clone)]
pub enum AnyWidth<A, B, C> {
    W32(A),
    W64(B),
    W128(C),
}

/// Computes `$body` with `$of_width` bound to what `$any` has, whatever the width.
macro_rules! with_width {
    ($any:expr, $of_width:ident => $body:expr) => {
        match $any {
            AnyWidth::W32($of_width) => $body,
            AnyWidth::W64($of_width) => $body,
            AnyWidth::W128($of_width) => $body,
        }
    };
}

/// Computes something else of the same width: `$body` with `$of_width` bound to what `$any` has.
macro_rules! map_width {
    ($any:expr, $of_width:ident => $body:expr) => {
        match $any {
            AnyWidth::W32($of_width) => AnyWidth::W32($body),
            AnyWidth::W64($of_width) => AnyWidth::W64($body),
            AnyWidth::W128($of_width) => AnyWidth::W128($body),
        }
    };
}

pub(crate) use {map_width, with_width};
