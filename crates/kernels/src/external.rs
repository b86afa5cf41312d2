//! Images that the program does not embed: debug images, and candidates of the maintainers' search.

use warptile_spec::abi::{BACKWARD_BLOCKS, FORWARD_BLOCKS};
use warptile_spec::record::{ImageRecord, RecordError};
use warptile_spec::{ElementType, Family, Role};

use crate::image::{Image, Resources, Target};

/// An image from outside, as whoever compiled it describes it. What its record says is not repeated here.
#[derive(Debug, Clone)]
pub struct External {
    /// Name of the image, `{kernel}_{element}_{target}`.
    pub name: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Name of the entry function.
    pub entry: String,
    /// How it computes.
    pub family: Family,
    /// The target it was compiled for.
    pub target: Target,
    /// Element type of the tensors.
    pub element: ElementType,
    /// Registers per thread; 0 for PTX.
    pub registers: u32,
    /// Static shared memory in bytes per CTA.
    pub static_shared_bytes: u32,
    /// Compiler and version.
    pub toolchain: String,
    /// SHA-256 over the sources.
    pub source_hash: String,
    /// SHA-256 of `bytes`.
    pub sha256: String,
    /// The cubin, or the text of the PTX.
    pub bytes: Vec<u8>,
}

impl External {
    /// The image, to be planned with and loaded as the embedded ones are. It lives as long as the program.
    ///
    /// # Errors
    /// [`ExternalError`] if it has no record, takes no parameter block of outputs or gradients that this program fills, has
    /// elements of a different size than it is said to have, or has the name of an embedded kernel or image.
    ///
    /// # Safety
    /// `bytes` is an image that the build of this project made, and the description is the one that the build wrote next to it:
    /// launched as its record says, its kernel accesses only the memory that a kernel of its family may.
    pub unsafe fn into_image(self) -> Result<&'static Image, ExternalError> {
        let record = ImageRecord::read(&self.bytes).map_err(|source| ExternalError::Record {
            image: self.name.clone(),
            source,
        })?;
        let filled = match record.role {
            Role::Forward => FORWARD_BLOCKS,
            _ => BACKWARD_BLOCKS,
        };
        if !record.takes_a_block() || !filled.contains(&record.abi_hash) {
            return Err(ExternalError::OtherAbi {
                image: self.name,
                role: record.role,
                found: record.abi_hash,
            });
        }
        if record.element_bytes as usize != self.element.size() {
            return Err(ExternalError::Element {
                image: self.name,
                bytes: record.element_bytes,
                element: self.element,
            });
        }
        if crate::catalog()
            .iter()
            .any(|image| image.kernel == self.kernel || image.name == self.name)
        {
            return Err(ExternalError::Duplicate {
                image: self.name,
                kernel: self.kernel,
            });
        }
        let pack: &'static [u8] = self.bytes.leak();
        Ok(Box::leak(Box::new(Image {
            name: self.name.leak(),
            kernel: self.kernel.leak(),
            entry: self.entry.leak(),
            family: self.family,
            role: record.role,
            schedule: record.schedule,
            features: record.features,
            target: self.target,
            element: self.element,
            tiling: record.tiling,
            resources: Resources {
                registers: self.registers,
                stack_bytes: 0,
                spill_bytes: 0,
                static_shared_bytes: self.static_shared_bytes,
                dynamic_shared_bytes: record.shared_bytes,
                tensor_instructions: 0,
            },
            abi_hash: record.abi_hash,
            param_bytes: record.param_bytes,
            toolchain: self.toolchain.leak(),
            source_hash: self.source_hash.leak(),
            sha256: self.sha256.leak(),
            pack,
            offset: 0,
            len: pack.len(),
        })))
    }
}

/// Why an image from outside is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// It has no readable record.
    #[error("{image}: {source}")]
    Record {
        /// The image.
        image: String,
        /// The defect of the record.
        source: RecordError,
    },
    /// It does not read a parameter block that this program fills for its role.
    #[error(
        "{image}: it takes a parameter block with the ABI hash {found:016x}, which this program fills for no kernel of the role {role}: \
         build image and program from the same commit"
    )]
    OtherAbi {
        /// The image.
        image: String,
        /// Its role.
        role: Role,
        /// The hash that its record carries.
        found: u64,
    },
    /// Its elements have another size.
    #[error("{image}: its record says elements of {bytes} bytes, its description {element}")]
    Element {
        /// The image.
        image: String,
        /// Bytes by the record.
        bytes: u32,
        /// Element type by the description.
        element: ElementType,
    },
    /// The program embeds one of this name.
    #[error(
        "{image}: this program has a kernel {kernel} of its own; images from outside need names of their own"
    )]
    Duplicate {
        /// The image.
        image: String,
        /// Its kernel.
        kernel: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of an embedded image under another name.
    fn copy() -> Option<(&'static Image, External)> {
        let image =
            crate::images_for(Role::Forward).find(|image| image.types().scaled().is_none())?;
        let external = External {
            name: format!("x_{}", image.name),
            kernel: format!("x_{}", image.kernel),
            entry: image.entry.to_owned(),
            family: image.family,
            target: image.target,
            element: image.element,
            registers: image.resources.registers,
            static_shared_bytes: image.resources.static_shared_bytes,
            toolchain: image.toolchain.to_owned(),
            source_hash: image.source_hash.to_owned(),
            sha256: image.sha256.to_owned(),
            bytes: image.bytes().unwrap(),
        };
        Some((image, external))
    }

    #[test]
    fn an_image_from_outside_says_what_the_embedded_one_does() {
        let Some((image, external)) = copy() else {
            return;
        };
        // SAFETY: the bytes are those of an embedded image, described as the catalog has it.
        let found = unsafe { external.into_image() }.unwrap();
        assert_eq!(found.name, format!("x_{}", image.name));
        assert_eq!(found.bytes(), image.bytes());
        assert_eq!(
            (found.tiling, found.features, found.schedule, found.abi_hash),
            (image.tiling, image.features, image.schedule, image.abi_hash)
        );
        assert_eq!(
            found.resources.dynamic_shared_bytes,
            image.resources.dynamic_shared_bytes
        );
    }

    #[test]
    fn what_this_program_cannot_launch_is_refused() {
        let Some((image, external)) = copy() else {
            return;
        };
        let refused = |external: External| {
            // SAFETY: it is not launched.
            unsafe { external.into_image() }.unwrap_err().to_string()
        };
        let named = External {
            kernel: image.kernel.to_owned(),
            ..external.clone()
        };
        assert!(refused(named).contains("names of their own"));
        let element = External {
            element: match image.element {
                ElementType::F32 => ElementType::F16,
                _ => ElementType::F32,
            },
            ..external.clone()
        };
        assert!(refused(element).contains("its record says elements of"));
        let hash = image.abi_hash.to_le_bytes();
        let mut bytes = external.bytes.clone();
        if let Some(at) = bytes.windows(8).position(|window| window == hash) {
            bytes[at] ^= 1;
            let other = External {
                bytes,
                ..external.clone()
            };
            assert!(refused(other).contains("ABI hash"));
        }
        let bytes = external.bytes[..external.bytes.len() / 2].to_vec();
        refused(External { bytes, ..external });
    }
}
