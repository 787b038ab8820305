//! The frame around a message: what it is, the version of the format and a checksum, so that bytes of another version,
//! cut short or changed are told apart from a message.
//!
//! ```text
//!   bytes   0..3     3        4..8              8..
//!           "RMQ"    version  CRC-32 of 8..     message
//! ```

use datafusion::common::{Result, exec_err};
use datafusion_proto::protobuf::proto_error;
use prost::Message;

const MAGIC: &[u8; 3] = b"RMQ";
/// The version of the messages that this crate writes, and the only one that it reads: client and workers are of one
/// release.
const VERSION: u8 = 2;
const HEADER_BYTES: usize = 8;

/// Whether the bytes are in such a frame, of any version.
pub(crate) fn is_framed(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Appends a message in its frame.
pub(crate) fn write(message: &impl Message, bytes: &mut Vec<u8>) {
    let body = message.encode_to_vec();
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
}

/// Reads a message.
///
/// # Errors
/// An execution error for bytes that are no message, of another version or damaged.
pub(crate) fn read<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    let what = "a part of a plan for datafusion-rmq";
    if !is_framed(bytes) {
        return exec_err!("these bytes are not {what}: the sender has another codec");
    }
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return exec_err!("{what} is cut short: it has {} bytes", bytes.len());
    };
    let version = header[MAGIC.len()];
    if version != VERSION {
        return exec_err!(
            "{what} is in version {version} of the format, and this process reads version {VERSION}: the client and all workers \
             must have the same release of datafusion-rmq"
        );
    }
    if header[MAGIC.len() + 1..] != crc32fast::hash(body).to_le_bytes() {
        return exec_err!("{what} was changed or cut short on its way: its checksum is wrong");
    }
    // The sender wrote what this release can't read: a fault of one of them.
    M::decode(body).map_err(|error| proto_error(format!("{what}: {error}")))
}
