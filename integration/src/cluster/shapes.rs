//! Templates by the shape that their name has: what the controller makes in a cluster, for tests without one.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The template with this name.
///
/// # Errors
/// The name has no such shape; parts of a card (`p50`) need the cards of a cluster.
pub fn template(name: &str, namespace: &str) -> Result<Value> {
    let shape = || format!("{name} is no template of a shape");
    let parts: Vec<&str> = name.split('-').collect();
    let ["cgpu", memory, cores, cards, level @ ..] = parts.as_slice() else {
        anyhow::bail!(shape());
    };
    let class = match level {
        [] => "vgpu.cgpu.io",
        ["high"] => "vgpu-high.cgpu.io",
        ["low"] => "vgpu-low.cgpu.io",
        _ => anyhow::bail!(shape()),
    };
    let number = |part: &str, letter: char| -> Result<u64> {
        let digits = part.strip_prefix(letter).with_context(shape)?;
        digits.parse().with_context(shape)
    };
    let mut requests = json!({"cores": number(cores, 'c')?.to_string()});
    if *memory != "whole" {
        requests["memory"] = match memory.strip_suffix("mi") {
            Some(mib) => format!("{}Mi", number(mib, 'm')?),
            None => format!("{}Gi", number(memory, 'm')?),
        }
        .into();
    }
    Ok(json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {
            "requests": [{"name": "vgpu", "exactly": {
                "deviceClassName": class,
                "count": number(cards, 'x')?,
                "capacity": {"requests": requests},
            }}],
            "constraints": [{"requests": ["vgpu"], "distinctAttribute": "gpu.cgpu.io/uuid"}],
        }}},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_template_of_its_shape() {
        let requests = |name| {
            let template = template(name, "team").unwrap();
            template["spec"]["spec"]["devices"]["requests"][0]["exactly"].clone()
        };
        let two = requests("cgpu-m4-c30-x2");
        assert_eq!(two["count"], 2);
        assert_eq!(
            two["capacity"]["requests"],
            json!({"cores": "30", "memory": "4Gi"})
        );
        let mib = requests("cgpu-m3000mi-c0-x1");
        assert_eq!(mib["capacity"]["requests"]["memory"], "3000Mi");
        assert_eq!(two["deviceClassName"], "vgpu.cgpu.io");
        let low = requests("cgpu-m4-c0-x1-low");
        assert_eq!(low["deviceClassName"], "vgpu-low.cgpu.io");
        let whole = requests("cgpu-whole-c0-x1");
        assert_eq!(whole["capacity"]["requests"], json!({"cores": "0"}));
        for wrong in [
            "cgpu-m4-c30",
            "cgpu-m4-c0-x1-normal",
            "cgpu-p50-c0-x1",
            "cgpu-m-c0-x1",
            "other-m4-c0-x1",
            "",
        ] {
            template(wrong, "team").unwrap_err();
        }
    }
}
