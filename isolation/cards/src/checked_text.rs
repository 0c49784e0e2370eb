//! What newtypes of a text that was checked have in common.

/// For a newtype of `String`: `as_str` and `Display`. With the error of its `new`: also `TryFrom<String>`, which checks, and `Into<String>`,
/// for serde.
#[macro_export]
macro_rules! checked_text {
    ($name:ident) => {
        impl $name {
            /// The text as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
    ($name:ident, $error:ty) => {
        $crate::checked_text!($name);

        impl TryFrom<String> for $name {
            type Error = $error;
            fn try_from(text: String) -> Result<Self, $error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(checked: $name) -> Self {
                checked.0
            }
        }
    };
}
