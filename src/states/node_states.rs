//! The states of the nodes of a tree, which are read in no order.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, UInt32Array, make_array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::{concat, take_arrays};
use arrow::datatypes::DataType;
use datafusion::common::Result;

use rmq_arrow::common::array_bytes::array_bytes;
use rmq_arrow::common::workers::Workers;

/// The nodes whose numbers are copied at a time, so that all of a state is read while it is in the cache.
const NODES_AT_A_TIME: usize = 64;

/// The most numbers of a state: those of a correlation.
const MAX_NUMBERS: usize = 6;

/// The bytes of a number.
const WIDTH: usize = size_of::<u64>();

/// The states of nodes by their positions.
#[derive(Debug)]
pub(crate) enum NodeStates {
    /// All fields, at most [`MAX_NUMBERS`], are numbers of 8 bytes and none is NULL: those of a node are beside one
    /// another.
    Numbers {
        types: Vec<DataType>,
        numbers: Vec<u64>,
    },
    /// One array for each field.
    Fields(Vec<ArrayRef>),
}

impl NodeStates {
    /// Those of consecutive nodes in parts, structs of the same type.
    ///
    /// # Errors
    /// Arrow's, if they are too large for one array. If the query is cancelled.
    pub(crate) fn of_parts(parts: &[ArrayRef], workers: Workers) -> Result<Self> {
        let parts: Vec<&[ArrayRef]> = parts.iter().map(|p| p.as_struct().columns()).collect();
        let fields = parts.first().map_or(&[][..], |part| part);
        let is_number = |field: &ArrayRef| {
            field.data_type().primitive_width() == Some(WIDTH) && field.null_count() == 0
        };
        let are_numbers = parts.iter().all(|part| part.iter().all(is_number));
        if !are_numbers || !(1..=MAX_NUMBERS).contains(&fields.len()) {
            let fields = (0..fields.len()).map(|field| {
                let parts = parts.iter().map(|part| part[field].as_ref());
                Ok(concat(&parts.collect::<Vec<_>>())?)
            });
            return Ok(Self::Fields(fields.collect::<Result<_>>()?));
        }
        let types = fields.iter().map(|field| field.data_type().clone());
        let nodes = parts.iter().map(|part| part[0].len());
        // Fresh memory, which all threads touch.
        let mut numbers = vec![0; fields.len() * nodes.sum::<usize>()];
        let mut rest = numbers.as_mut_slice();
        let parts = parts.into_iter().map(|part| {
            let (of_part, after) =
                std::mem::take(&mut rest).split_at_mut(fields.len() * part[0].len());
            rest = after;
            (part, of_part)
        });
        workers.map(
            parts.collect(),
            |(part, numbers): (&[ArrayRef], &mut [u64])| {
                for (field, column) in part.iter().enumerate() {
                    let states = numbers.chunks_exact_mut(part.len());
                    for (state, number) in states.zip(numbers_of(column).iter()) {
                        state[field] = *number;
                    }
                }
                Ok(())
            },
        )?;
        Ok(Self::Numbers {
            types: types.collect(),
            numbers,
        })
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Numbers { types, numbers } => numbers.len() / types.len().max(1),
            Self::Fields(fields) => fields.first().map_or(0, Array::len),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Numbers { numbers, .. } => size_of_val(numbers.as_slice()),
            Self::Fields(fields) => fields.iter().map(|field| array_bytes(field)).sum(),
        }
    }

    /// The fields of the states at these positions.
    ///
    /// # Errors
    /// Arrow's.
    pub(crate) fn take(&self, positions: Vec<u32>) -> Result<Vec<ArrayRef>> {
        let (types, numbers) = match self {
            Self::Fields(fields) => {
                return Ok(take_arrays(fields, &UInt32Array::from(positions), None)?);
            }
            Self::Numbers { types, numbers } => (types, numbers),
        };
        let fields = match types.len() {
            1 => taken::<1>(numbers, &positions),
            2 => taken::<2>(numbers, &positions),
            3 => taken::<3>(numbers, &positions),
            4 => taken::<4>(numbers, &positions),
            5 => taken::<5>(numbers, &positions),
            _ => taken::<MAX_NUMBERS>(numbers, &positions),
        };
        let arrays = fields.into_iter().zip(types).map(|(field, data_type)| {
            let data = ArrayData::builder(data_type.clone()).len(field.len());
            Ok(make_array(
                data.add_buffer(Buffer::from_vec(field)).build()?,
            ))
        });
        arrays.collect()
    }
}

/// The fields of the states at these positions, of states of `N` numbers each.
fn taken<const N: usize>(numbers: &[u64], positions: &[u32]) -> Vec<Vec<u64>> {
    let (states, _) = numbers.as_chunks::<N>();
    let mut fields = [(); N].map(|()| Vec::with_capacity(positions.len()));
    for nodes in positions.chunks(NODES_AT_A_TIME) {
        for (field, taken) in fields.iter_mut().enumerate() {
            taken.extend(nodes.iter().map(|node| states[*node as usize][field]));
        }
    }
    fields.into()
}

/// The bits of an array of numbers of 8 bytes.
fn numbers_of(array: &ArrayRef) -> ScalarBuffer<u64> {
    let data = array.to_data();
    ScalarBuffer::new(data.buffers()[0].clone(), data.offset(), data.len())
}
