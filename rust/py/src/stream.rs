//! Boundary of `dpmesh_core::stream`: keys and streams, opaque to Python.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dpmesh_core::stream::{self, Cipher};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use zeroize::Zeroizing;

use crate::arguments::integer;
use crate::convert::{read, run_native, unfit, write};

fn cipher(name: &str) -> PyResult<Cipher> {
    match name {
        "aes" => Ok(Cipher::Aes),
        "chacha20" => Ok(Cipher::ChaCha20),
        other => Err(unfit("cipher", "'aes' or 'chacha20'", format!("'{other}'"))),
    }
}

fn never_stored(secret: &Bound<'_, PyAny>) -> PyResult<()> {
    let name = secret.get_type().name()?;
    let message = format!("a {name} cannot be pickled or copied: keys are never stored");
    Err(PyTypeError::new_err(message))
}

/// A secret of 256 bits that opens streams; made by `Key.generate` or `Key.seeded`.
#[pyclass(frozen, module = "dpmesh._core")]
pub(crate) struct Key {
    secret: stream::Key,
    is_seeded: bool,
    nodes: Option<Arc<[u32]>>,
}

impl Key {
    fn of_all_nodes(secret: stream::Key, is_seeded: bool) -> Key {
        Key {
            secret,
            is_seeded,
            nodes: None,
        }
    }
}

#[pymethods]
impl Key {
    /// Says how a key is made: there is no default one.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Key> {
        let ways = "Key.generate(), Key.seeded(seed) or Key.load(path)";
        Err(PyTypeError::new_err(format!("a Key is made by {ways}")))
    }

    /// A key from the operating system's generator, for "aes" or "chacha20".
    #[staticmethod]
    #[pyo3(signature = (cipher = "aes"))]
    fn generate(cipher: &str) -> PyResult<Key> {
        let key = stream::Key::generate(self::cipher(cipher)?);
        let secret = key.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Key::of_all_nodes(secret, false))
    }

    /// The key made from an integer of at least 0 and below 2**256. Anyone who knows the seed can subtract the noise.
    #[staticmethod]
    #[pyo3(signature = (seed, cipher = "aes"))]
    fn seeded(seed: &Bound<'_, PyAny>, cipher: &str) -> PyResult<Key> {
        let secret = stream::Key::new(self::cipher(cipher)?, &*seed_bytes(seed)?);
        Ok(Key::of_all_nodes(secret, true))
    }

    /// The key that `save` wrote into a file.
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Key> {
        let secret = stream::Key::load(&path).map_err(|error| unusable(&path, error))?;
        Ok(Key::of_all_nodes(secret, false))
    }

    /// Writes the key into a new file that only its owner can read. A seeded key is refused: keep its seed.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        if self.is_seeded {
            let wanted = "a key from the operating system to save";
            return Err(unfit("key", wanted, "a seeded one: keep its seed"));
        }
        self.secret
            .save(&path)
            .map_err(|error| unusable(&path, error))
    }

    /// "aes" or "chacha20".
    #[getter]
    fn cipher(&self) -> &'static str {
        self.secret.cipher().name()
    }

    /// Whether the key came from a seed, so that what it protects is no private release.
    #[getter]
    fn is_seeded(&self) -> bool {
        self.is_seeded
    }

    /// Another key, which only those with this key and these bytes know; keys from different bytes are independent.
    fn derive(&self, data: &[u8]) -> Key {
        Key {
            secret: self.secret.derive(data),
            is_seeded: self.is_seeded,
            nodes: self.nodes.clone(),
        }
    }

    /// The stream for a purpose (1 to 2**32 - 1) in a round (0 to 2**32 - 1).
    #[pyo3(signature = (purpose, round = 0))]
    fn stream(
        &self,
        #[pyo3(from_py_with = purpose_number)] purpose: u32,
        #[pyo3(from_py_with = round_number)] round: u32,
    ) -> PyResult<Stream> {
        let stream = self.secret.stream(purpose, round);
        let stream =
            stream.map_err(|error| unfit(error.argument(), error.wanted(), error.got()))?;
        Ok(Stream {
            kernel: match &self.nodes {
                Some(nodes) => stream.for_nodes(Arc::clone(nodes)),
                None => stream,
            },
            cipher: self.secret.cipher(),
            is_seeded: self.is_seeded,
        })
    }

    /// The same key for a process that holds only these nodes: row r of what it draws is that of node nodes[r].
    fn for_nodes(&self, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Key> {
        Ok(Key {
            secret: self.secret.clone(),
            is_seeded: self.is_seeded,
            nodes: Some(some_of(self.nodes.as_deref(), nodes)?),
        })
    }

    fn __repr__(&self) -> String {
        described("Key", self.cipher(), self.is_seeded)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        never_stored(slf.as_any())
    }
}

/// The random words of every node for one purpose in one round; made by `Key.stream`.
#[derive(Debug)]
#[pyclass(frozen, module = "dpmesh._core")]
pub struct Stream {
    pub kernel: stream::Stream,
    cipher: Cipher,
    is_seeded: bool,
}

#[pymethods]
impl Stream {
    /// "aes" or "chacha20".
    #[getter]
    fn cipher(&self) -> &'static str {
        self.cipher.name()
    }

    /// Whether the key came from a seed, so that what it protects is no private release.
    #[getter]
    fn is_seeded(&self) -> bool {
        self.is_seeded
    }

    /// The purpose that the stream is for.
    #[getter]
    fn purpose(&self) -> u32 {
        self.kernel.purpose()
    }

    /// The round that the stream is for.
    #[getter]
    fn round(&self) -> u32 {
        self.kernel.round()
    }

    /// Fills an array of uint32 with the first words of a node.
    fn words<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = node_number)] node: u32,
        out: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<()> {
        let mut out = write::<u32>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || self.kernel.words_into(node, 0, out))
    }

    /// The same stream for some of its nodes only: row r of what it draws is that of node nodes[r].
    fn for_nodes(&self, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Stream> {
        let nodes = some_of(self.kernel.nodes(), nodes)?;
        Ok(Stream {
            kernel: self.kernel.clone().for_nodes(nodes),
            cipher: self.cipher,
            is_seeded: self.is_seeded,
        })
    }

    fn __repr__(&self) -> String {
        described("Stream", self.cipher(), self.is_seeded)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        never_stored(slf.as_any())
    }
}

fn unusable(path: &Path, error: io::Error) -> PyErr {
    match error.kind() {
        io::ErrorKind::InvalidData => unfit("path", "a file that Key.save wrote", path.display()),
        kind => io::Error::new(kind, format!("{}: {error}", path.display())).into(),
    }
}

fn described(what: &str, cipher: &str, is_seeded: bool) -> String {
    let is_seeded = if is_seeded { "True" } else { "False" };
    format!("{what}(cipher='{cipher}', is_seeded={is_seeded})")
}

fn purpose_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("purpose", value, 1)
}

fn round_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("round", value, 0)
}

fn node_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("node", value, 0)
}

/// The 32 bytes of the seed, lowest first.
fn seed_bytes(seed: &Bound<'_, PyAny>) -> PyResult<Zeroizing<[u8; 32]>> {
    let bytes = match seed.cast::<PyInt>() {
        Ok(seed) => seed.call_method1("to_bytes", (32, "little")).ok(),
        Err(_) => None,
    };
    match bytes {
        Some(bytes) => Ok(Zeroizing::new(bytes.extract()?)),
        None => Err(unfit(
            "seed",
            "an integer of at least 0 and below 2**256",
            seed.repr()?,
        )),
    }
}

/// The nodes at these places among the `held` ones; `None` holds all.
fn some_of(held: Option<&[u32]>, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Arc<[u32]>> {
    let nodes = read::<u32>("nodes", nodes)?;
    let Some(held) = held else {
        return Ok(nodes.as_slice()?.into());
    };
    let of = |node: &u32| held.get(*node as usize).copied().ok_or(*node);
    let chosen: Result<_, u32> = nodes.as_slice()?.iter().map(of).collect();
    let wanted = format!("nodes below {}, as many as the key is for", held.len());
    chosen.map_err(|node| unfit("nodes", &wanted, node))
}
