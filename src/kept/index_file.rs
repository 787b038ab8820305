//! Files in which indexes survive the process.
//!
//! ```text
//!   magic | format | crc of the header | length of the header | header | section | section | …
//!
//!   header    who wrote it, what it is of (identity and version), the number of rows, the length and crc of each section
//!   section   an array, as an Arrow IPC stream of one batch
//! ```
//!
//! A file is named by its identity, so the index of a new version of a table takes the place of the older one. It is
//! written under another name, and renamed once it is on disk: who opens it, in any process, sees all of an older file
//! or all of the newer one. What is read counts only if each byte is as it was written, and if identity and version are
//! those that are looked for. Anything else is as if there were no file.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::buffer::Buffer;
use arrow::datatypes::{Field, Schema};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};

use crate::kept::identity::Identity;
use datafusion_rmq_logical::common::unique_id::unique_id;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::common::workers::Workers;
use rmq_engine::cpu::HugePageBuf;

const MAGIC: [u8; 8] = *b"rmqindex";

/// The format of the file, in the byte order of the machine: files of the other order have another format.
const FORMAT: u32 = 1;

/// The bytes before the header.
const PREFIX: usize = 24;

/// Who wrote a file: the types and expressions in it are those of one version.
const WRITER: &str = concat!(env!("CARGO_PKG_VERSION"), " of datafusion-rmq");

/// The extension of the files.
const EXTENSION: &str = "rmq";

/// The extension of files that are being written.
const UNFINISHED: &str = "tmp";

/// Bytes that a thread reads at a time.
const READ_BYTES: usize = 4 << 20;

/// Unfinished files that are older were left by processes that were killed.
const ABANDONED: Duration = Duration::from_hours(1);

/// A file of a directory, which may exist or not.
#[derive(Debug, Clone)]
pub(crate) struct IndexFile {
    path: PathBuf,
    identity: Identity,
    version: Identity,
}

/// A file whose header is that of the index that was looked for.
#[derive(Debug)]
pub(crate) struct OpenIndexFile {
    path: PathBuf,
    file: File,
    rows: u64,
    /// Where the first section begins.
    first_section: u64,
    sections: Vec<Section>,
}

#[derive(Debug)]
struct Section {
    len: u64,
    crc: u32,
}

impl IndexFile {
    /// The file of an index. Others of its identity, of other versions, have the same name.
    pub(crate) fn new(directory: &Path, identity: Identity, version: Identity) -> Self {
        let name = format!("{:032x}.{EXTENSION}", identity.hash());
        Self {
            path: directory.join(name),
            identity,
            version,
        }
    }

    /// Opens the file, if it exists and has the header that it should. That it has another one is logged.
    pub(crate) fn open(&self) -> Option<OpenIndexFile> {
        match self.try_open() {
            Ok(opened) => opened,
            Err(error) => {
                warn_ignored(&self.path, &error);
                None
            }
        }
    }

    fn try_open(&self) -> Result<Option<OpenIndexFile>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let file_len = file.metadata()?.len();
        let mut prefix = [0; PREFIX];
        read(&mut file, &mut prefix)?;
        let (magic, rest) = prefix.split_at(MAGIC.len());
        let mut rest = Reader(rest);
        let (format, crc, header_len) = (rest.u32()?, rest.u32()?, rest.u64()?);
        if magic != MAGIC {
            return exec_err!("it is no index");
        }
        if format != FORMAT {
            return exec_err!("it has the format {format} instead of {FORMAT}");
        }
        if header_len > file_len {
            return exec_err!("it has been cut short");
        }
        let mut header = vec![0; length(header_len)?];
        read(&mut file, &mut header)?;
        if crc32fast::hash(&header) != crc {
            return exec_err!("its header is damaged");
        }
        let mut header = Reader(&header);
        let writer = header.text()?;
        if writer != WRITER.as_bytes() {
            let writer = String::from_utf8_lossy(writer);
            return exec_err!("it was written by version {writer}");
        }
        let (identity, version) = (header.text()?, header.text()?);
        if (identity, version) != (self.identity.bytes(), self.version.bytes()) {
            log::debug!(
                "{} is of another version of its table, or of another index",
                self.path.display()
            );
            return Ok(None);
        }
        let rows = header.u64()?;
        let mut sections = vec![];
        while !header.0.is_empty() {
            sections.push(Section {
                len: header.u64()?,
                crc: header.u32()?,
            });
        }
        let lengths = sections.iter().map(|section| section.len);
        let first_section = PREFIX as u64 + header_len;
        let end = lengths.fold(first_section, u64::saturating_add);
        if end != file_len {
            return exec_err!("it has {file_len} bytes instead of {end}");
        }
        Ok(Some(OpenIndexFile {
            path: self.path.clone(),
            file,
            rows,
            first_section,
            sections,
        }))
    }

    /// Writes the file: these arrays, of an index of this many rows. Makes the directory if there is none.
    ///
    /// # Errors
    /// Those of the file system. There is no file then, or the older one.
    pub(crate) fn write(&self, rows: u64, arrays: &[ArrayRef]) -> Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(directory)?;
        remove_abandoned(directory);
        let name = format!("{}-{:x}.{UNFINISHED}", process::id(), unique_id());
        let unfinished = self.path.with_extension(name);
        let written = self.write_to(&unfinished, rows, arrays);
        let renamed = written.and_then(|()| Ok(fs::rename(&unfinished, &self.path)?));
        if renamed.is_err() {
            // It may not exist, and the next process removes it if it can't be removed now.
            let _ = fs::remove_file(&unfinished);
        }
        renamed?;
        // So that the name, too, is on disk. Not all systems open directories.
        if let Ok(directory) = File::open(directory) {
            let _ = directory.sync_all();
        }
        Ok(())
    }

    fn write_to(&self, path: &Path, rows: u64, arrays: &[ArrayRef]) -> Result<()> {
        let mut file = File::create_new(path)?;
        let empty = arrays.iter().map(|_| Section { len: 0, crc: 0 });
        let header_len = self.header(rows, &empty.collect::<Vec<_>>()).len();
        file.seek(SeekFrom::Start((PREFIX + header_len) as u64))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let mut sections = vec![];
        for array in arrays {
            sections.push(write_array(array, &mut file)?);
        }
        let mut file = file.into_inner().map_err(IntoInnerError::into_error)?;
        let header = self.header(rows, &sections);
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&MAGIC)?;
        file.write_all(&FORMAT.to_ne_bytes())?;
        file.write_all(&crc32fast::hash(&header).to_ne_bytes())?;
        file.write_all(&(header.len() as u64).to_ne_bytes())?;
        file.write_all(&header)?;
        file.sync_all()?;
        Ok(())
    }

    fn header(&self, rows: u64, sections: &[Section]) -> Vec<u8> {
        let mut header = vec![];
        for text in [
            WRITER.as_bytes(),
            self.identity.bytes(),
            self.version.bytes(),
        ] {
            header.extend((text.len() as u64).to_ne_bytes());
            header.extend(text);
        }
        header.extend(rows.to_ne_bytes());
        for section in sections {
            header.extend(section.len.to_ne_bytes());
            header.extend(section.crc.to_ne_bytes());
        }
        header
    }
}

impl OpenIndexFile {
    /// The number of rows of the index.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of all arrays.
    pub(crate) fn bytes(&self) -> usize {
        let lengths = self.sections.iter().map(|section| section.len);
        usize::try_from(lengths.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
    }

    /// Reads the arrays, and makes something of them by `make`; `None` if they are not as they were written, or not
    /// what that expects, which is logged.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(crate) fn read<T>(
        &self,
        workers: Workers,
        make: impl FnOnce(Vec<ArrayRef>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.try_read(workers).and_then(make) {
            Ok(of_arrays) => Ok(Some(of_arrays)),
            Err(error) => {
                workers.check()?;
                warn_ignored(&self.path, &error);
                Ok(None)
            }
        }
    }

    fn try_read(&self, workers: Workers) -> Result<Vec<ArrayRef>> {
        let mut offset = self.first_section;
        let sections = self.sections.iter().map(|section| {
            // Aligned, so that arrays need no copy. Memory that is fresh from the kernel costs more than reading: the
            // threads that read share that, too.
            let bytes = HugePageBuf::<u8>::zeroed(length(section.len)?);
            let mut bytes = bytes.map_err(engine_error)?;
            let parts = bytes.chunks_mut(READ_BYTES);
            let parts = parts.zip((offset..).step_by(READ_BYTES)).collect();
            let sums = workers.map(parts, |(part, offset)| {
                read_at(&self.file, part, offset)?;
                let mut sum = crc32fast::Hasher::new();
                sum.update(part);
                Ok(sum)
            })?;
            offset += section.len;
            let mut whole = crc32fast::Hasher::new();
            for sum in &sums {
                whole.combine(sum);
            }
            if whole.finalize() != section.crc {
                return exec_err!("it is damaged");
            }
            read_array(Buffer::from(Bytes::from_owner(bytes)))
        });
        sections.collect()
    }
}

fn warn_ignored(path: &Path, error: &DataFusionError) {
    let path = path.display();
    log::warn!(
        "the index file {path} is ignored: {}",
        error.strip_backtrace()
    );
}

/// Counts and sums what is written.
struct Summed<'a, W> {
    to: &'a mut W,
    len: u64,
    crc: crc32fast::Hasher,
}

impl<W: Write> Write for Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.len += written as u64;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes an array as a stream of one batch.
fn write_array(array: &ArrayRef, to: &mut impl Write) -> Result<Section> {
    let mut summed = Summed {
        to,
        len: 0,
        crc: crc32fast::Hasher::new(),
    };
    let field = Field::new("", array.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let options = RecordBatchOptions::new().with_row_count(Some(array.len()));
    let columns = vec![Arc::clone(array)];
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
    let mut stream = StreamWriter::try_new(&mut summed, &schema)?;
    stream.write(&batch)?;
    stream.finish()?;
    drop(stream);
    Ok(Section {
        len: summed.len,
        crc: summed.crc.finalize(),
    })
}

/// The array of a stream, in the memory of these bytes.
fn read_array(mut bytes: Buffer) -> Result<ArrayRef> {
    let mut decoder = StreamDecoder::new();
    let mut array = None;
    while !bytes.is_empty() {
        if let Some(batch) = decoder.decode(&mut bytes)? {
            array = batch.columns().first().cloned();
        }
    }
    decoder.finish()?;
    array.ok_or_else(|| exec_datafusion_err!("it lacks an array"))
}

/// Takes numbers and texts off the bytes of a header.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else {
            return exec_err!("its header is too short");
        };
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4)?);
        Ok(u32::from_ne_bytes(number))
    }

    fn u64(&mut self) -> Result<u64> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_ne_bytes(number))
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        let len = length(self.u64()?)?;
        self.take(len)
    }
}

fn length(len: u64) -> Result<usize> {
    usize::try_from(len).or_else(|_| exec_err!("it is too large for this machine"))
}

fn read(file: &mut File, bytes: &mut [u8]) -> Result<()> {
    file.read_exact(bytes).or_else(explain_end)
}

/// Reads the bytes from an offset on, on any thread.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset).or_else(explain_end)
}

/// Reads the bytes from an offset on. Threads take turns, as they share the file's position.
#[cfg(not(unix))]
fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes).or_else(explain_end)
}

fn explain_end(error: io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::UnexpectedEof => exec_err!("it has been cut short"),
        _ => Err(error.into()),
    }
}

/// Removes what processes that were killed have left. A failure leaves it to the next call.
fn remove_abandoned(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let is_unfinished = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let extension = format!(".{UNFINISHED}");
        name.is_some_and(|name| name.len() > 32 && name.ends_with(&extension))
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let age = || fs::metadata(&path).ok()?.modified().ok()?.elapsed().ok();
        if is_unfinished(&path) && age().is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::ScopedJoinHandle;

    use arrow::array::{DictionaryArray, Float64Array, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::Int16Type;

    use super::*;

    fn identity(text: &str) -> Identity {
        let mut identity = Identity::default();
        identity.add(text.as_bytes());
        identity
    }

    fn file(directory: &Path) -> IndexFile {
        IndexFile::new(directory, identity("rows of p"), identity("version 1"))
    }

    /// Arrays of this many rows of several types.
    fn arrays(rows: u32) -> Vec<ArrayRef> {
        let names = || (0..rows).map(|i| (i % 3 > 0).then(|| format!("name {i} of some length")));
        let codes: DictionaryArray<Int16Type> =
            (0..rows).map(|i| ["a", "b"][i as usize % 2]).collect();
        let floats = [0.0, -0.0, f64::NAN, f64::INFINITY];
        let floats = (0..rows).map(|i| (i % 5 > 0).then(|| floats[i as usize % 4]));
        vec![
            Arc::new(Int64Array::from_iter_values(0..i64::from(rows))),
            Arc::new(names().collect::<StringArray>()),
            Arc::new(
                names()
                    .collect::<StringViewArray>()
                    .slice(1, rows as usize - 1),
            ),
            Arc::new(codes),
            Arc::new(floats.collect::<Float64Array>()),
            Arc::new(Int64Array::from(Vec::<i64>::new())),
        ]
    }

    fn read_back(file: &IndexFile) -> Option<(u64, Vec<ArrayRef>)> {
        let opened = file.open()?;
        let arrays = opened
            .read(Workers::new(2, &|| Ok(())), Ok)
            .expect("no cancellation")?;
        Some((opened.rows(), arrays))
    }

    fn bits(arrays: &[ArrayRef]) -> Vec<String> {
        // NaN is not equal to itself, and zeros of both signs are.
        arrays.iter().map(|a| format!("{a:?}")).collect()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        // It is made, with those above it.
        let file = file(&directory.path().join("some/indexes"));
        assert!(read_back(&file).is_none());
        for rows in [40, 7] {
            let written = arrays(rows);
            file.write(rows.into(), &written).unwrap();
            let (found, read) = read_back(&file).unwrap();
            assert_eq!(found, u64::from(rows));
            assert_eq!(bits(&read), bits(&written));
        }
        file.write(0, &[]).unwrap();
        assert_eq!(read_back(&file).unwrap().1.len(), 0);
    }

    /// Every bit of every byte, every length, and bytes after the end.
    #[test]
    fn a_damaged_file_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        let written = arrays(3);
        file.write(3, &written).unwrap();
        let whole = fs::read(&file.path).unwrap();
        assert!(read_back(&file).is_some());
        let check = |bytes: &[u8], what: &str| {
            fs::write(&file.path, bytes).unwrap();
            assert!(read_back(&file).is_none(), "{what}");
        };
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                check(&flipped, &format!("bit {bit} of byte {at}"));
            }
            check(&whole[..at], &format!("cut to {at} bytes"));
        }
        check(&[&whole[..], &[0]].concat(), "a byte more");
        check(&vec![0; whole.len()], "zeros");
        check(b"some text that is no index", "text");
        fs::write(&file.path, &whole).unwrap();
        assert!(read_back(&file).is_some());
        // What is ignored is written over.
        fs::write(&file.path, &whole[..100]).unwrap();
        file.write(3, &written).unwrap();
        assert!(read_back(&file).is_some());
    }

    #[test]
    fn an_index_of_something_else_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(3, &arrays(3)).unwrap();
        let newer = IndexFile {
            version: identity("version 2"),
            ..file.clone()
        };
        assert_eq!(
            newer.path,
            IndexFile::new(
                directory.path(),
                identity("rows of p"),
                identity("version 2")
            )
            .path
        );
        assert!(read_back(&newer).is_none());
        // As if the hashes were the same.
        let other = IndexFile {
            identity: identity("rows of q"),
            ..file.clone()
        };
        assert!(read_back(&other).is_none());
        newer.write(2, &arrays(2)).unwrap();
        assert!(
            read_back(&file).is_none(),
            "it has taken the place of the older one"
        );
        assert!(read_back(&newer).is_some());
    }

    /// Files with another format, and of another version of the crate, whose checksums are right.
    #[test]
    fn a_file_of_another_version_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(3, &arrays(3)).unwrap();
        let whole = fs::read(&file.path).unwrap();
        let mut other = whole.clone();
        other[8..12].copy_from_slice(&(FORMAT + 1).to_ne_bytes());
        fs::write(&file.path, &other).unwrap();
        assert!(
            file.try_open()
                .unwrap_err()
                .to_string()
                .contains("format 2")
        );
        let mut other = whole.clone();
        let mut header_len = [0; 8];
        header_len.copy_from_slice(&whole[16..PREFIX]);
        let header = PREFIX..PREFIX + usize::try_from(u64::from_ne_bytes(header_len)).unwrap();
        other[PREFIX + 8] = b'9';
        let crc = crc32fast::hash(&other[header]);
        other[12..16].copy_from_slice(&crc.to_ne_bytes());
        fs::write(&file.path, &other).unwrap();
        let error = file.try_open().unwrap_err().to_string();
        assert!(error.contains("written by version 9"), "{error}");
    }

    /// Readers see what one of the writers has written, and no unfinished file is left.
    #[test]
    fn several_may_write_and_read_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(2, &arrays(2)).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers = [50, 3_000].map(|rows| {
                let file = &file;
                scope.spawn(move || {
                    for i in 0..20 {
                        let rows: u32 = rows + i;
                        file.write(rows.into(), &arrays(rows)).unwrap();
                    }
                })
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let (rows, read) = read_back(&file).expect("a file");
                        let rows = u32::try_from(rows).unwrap();
                        assert_eq!(bits(&read), bits(&arrays(rows)));
                    }
                });
            }
            let written = writers.map(ScopedJoinHandle::join);
            ended.store(true, Ordering::Relaxed);
            for writer in written {
                writer.unwrap();
            }
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_killed_processes_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        let unfinished = |name: &str, is_old: bool| {
            let path = directory.path().join(name);
            let left = File::create(&path).unwrap();
            if is_old {
                left.set_modified(old).unwrap();
            }
            path
        };
        let name = "0123456789abcdef0123456789abcdef";
        let abandoned = unfinished(&format!("{name}.1-1.tmp"), true);
        let recent = unfinished(&format!("{name}.1-2.tmp"), false);
        let others = unfinished("mine.tmp", true);
        file.write(2, &arrays(2)).unwrap();
        assert!(!abandoned.exists() && recent.exists() && others.exists());
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(2, &arrays(2)).unwrap();
        // A directory can't be replaced by a file.
        let other = IndexFile::new(directory.path(), identity("other"), identity("version 1"));
        fs::create_dir(&other.path).unwrap();
        assert!(other.write(2, &arrays(2)).is_err());
        assert!(read_back(&other).is_none());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert!(read_back(&file).is_some());
        // Nor can there be a directory in a file.
        let nowhere = IndexFile::new(&file.path, identity("other"), identity("version 1"));
        assert!(nowhere.write(2, &arrays(2)).is_err());
        assert!(read_back(&nowhere).is_none());
    }
}
