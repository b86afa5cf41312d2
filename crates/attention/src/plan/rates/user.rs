//! The rates of the user's own GPUs, in the folder for configuration.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use warptile_kernels::Excerpt;

use super::Rates;
use crate::error::{Error, Result};
use crate::plan::DeviceProfile;

impl Rates {
    /// Where `warptile tune` keeps the rates of a GPU: `warptile/rates/` in the user's folder for configuration, a file for each name of a
    /// GPU. That folder is `XDG_CONFIG_HOME` or `.config` in the home folder, `Library/Application Support` on macOS, and `APPDATA` on
    /// Windows; `None` if the environment names none.
    pub fn user_file(device: &str) -> Option<PathBuf> {
        // A path that is not absolute is to be ignored (XDG Base Directory Specification).
        let folder = |name: &str| {
            let path = env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let configuration = if cfg!(windows) {
            folder("APPDATA")
        } else if cfg!(target_os = "macos") {
            folder("HOME").map(|home| home.join("Library/Application Support"))
        } else {
            folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))
        }?;
        let words = device.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<String> = words
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        let name = words.join("-") + ".txt";
        Some(configuration.join("warptile").join("rates").join(name))
    }

    /// The rates that the user's own file has for a GPU; `None` if no such file exists. `driver` is the driver's name, such as
    /// `CUDA 13.0`.
    ///
    /// # Errors
    /// [`Error::RatesFile`] if the file can't be read or parsed, or was measured on another GPU or with another driver: it is not in force
    /// then.
    pub fn of_user(device: &DeviceProfile, driver: &str) -> Result<Option<Self>> {
        let Some(path) = Self::user_file(&device.name) else {
            return Ok(None);
        };
        let refuse = |reason: String| Error::RatesFile {
            path: path.clone(),
            reason,
        };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| refuse(error.to_string()))?,
        };
        let rates: Rates = text
            .parse()
            .map_err(|error: Error| refuse(error.to_string()))?;
        rates.check_for(device, driver).map_err(refuse)?;
        Ok(Some(rates))
    }

    /// Why these are not the rates of this GPU with this driver.
    fn check_for(&self, device: &DeviceProfile, driver: &str) -> std::result::Result<(), String> {
        if self.device != device.name {
            return Err(format!(
                "it was measured on {}, and this is {}",
                Excerpt::new(&self.device),
                device.name
            ));
        }
        if self.multiprocessors != device.multiprocessors {
            return Err(format!(
                "it was measured with {} multiprocessors, and there are {}",
                self.multiprocessors, device.multiprocessors
            ));
        }
        match self.driver.as_deref() {
            Some(measured) if measured != driver => Err(format!(
                "it was measured with driver {}, and this is {driver}",
                Excerpt::new(measured)
            )),
            Some(_) => Ok(()),
            None => Err("it does not say with which driver it was measured".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_one_gpu_and_one_driver() {
        let text =
            "device NVIDIA H200\ndriver CUDA 13.0\nmultiprocessors 132\nbandwidth 4\nlaunch 3";
        let h200 = DeviceProfile::h200();
        let check = |text: &str, device: &DeviceProfile, driver: &str| {
            text.parse::<Rates>().unwrap().check_for(device, driver)
        };
        assert_eq!(check(text, &h200, "CUDA 13.0"), Ok(()));
        let error = check(text, &h200, "CUDA 13.1").unwrap_err();
        assert!(
            error.contains("CUDA 13.0, and this is CUDA 13.1"),
            "{error}"
        );
        let part = h200.clone().with_multiprocessors(66);
        let error = check(text, &part, "CUDA 13.0").unwrap_err();
        assert!(error.contains("132 multiprocessors"), "{error}");
        let h100 = DeviceProfile {
            name: "NVIDIA H100".to_owned(),
            ..h200.clone()
        };
        let error = check(text, &h100, "CUDA 13.0").unwrap_err();
        assert!(error.contains("NVIDIA H100"), "{error}");
        let nameless = text.replace("driver CUDA 13.0\n", "");
        let error = check(&nameless, &h200, "CUDA 13.0").unwrap_err();
        assert!(error.contains("does not say"), "{error}");
    }

    #[test]
    fn files_are_named_after_gpus() {
        let file = |name: &str| {
            let path = Rates::user_file(name)?;
            Some(path.file_name()?.to_str()?.to_owned())
        };
        // The environment of a test may name no folder.
        if let Some(name) = file("NVIDIA GeForce RTX 4090") {
            assert_eq!(name, "nvidia-geforce-rtx-4090.txt");
            assert_eq!(file("../a/ b_c").as_deref(), Some("a-b-c.txt"));
        }
    }
}
