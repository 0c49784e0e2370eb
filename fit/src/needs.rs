//! What a claim's requests need of cards, by the claim and its classes. Pure.

use std::collections::BTreeMap;

use dra::quantity;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceConstraint, DeviceRequest, DeviceSelector,
    DeviceToleration, ResourceClaimSpec,
};

use crate::selector;

/// How many cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// So many, each another one.
    Exactly(u64),
    /// All that there are.
    All,
}

/// One way to meet a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// `vgpu`, or `vgpu/size-0` of an alternative.
    pub request: String,
    /// The DeviceClass.
    pub class: String,
    /// How many cards.
    pub count: Count,
    /// By capacity, as the claim names it.
    pub capacities: BTreeMap<String, u64>,
    /// Of the class and of the request.
    pub selectors: Vec<String>,
    /// Taints of cards that it takes.
    pub tolerations: Vec<DeviceToleration>,
}

/// One request: the first of its alternatives that fits is taken.
pub type Request = Vec<Need>;

/// A claim that is to be allocated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Needs {
    /// Requests of this driver's.
    pub requests: Vec<Request>,
    /// What holds among the cards of several requests.
    pub constraints: Vec<DeviceConstraint>,
    /// What cannot be met wherever: for people.
    pub hurdles: Vec<String>,
    /// Requests that are another driver's, which are not looked at.
    pub foreign: Vec<String>,
}

/// Classes by name.
pub type Classes = BTreeMap<String, DeviceClass>;

/// Requests that a claim can have, and results.
const RESULTS_MAX: u64 = 32;

impl Needs {
    /// What a claim needs.
    pub fn of(spec: &ResourceClaimSpec, classes: &Classes) -> Self {
        let mut needs = Self::default();
        let devices = spec.devices.clone().unwrap_or_default();
        needs.constraints = devices.constraints.unwrap_or_default();
        for request in devices.requests.iter().flatten() {
            needs.add(request, classes);
        }
        needs
    }

    /// What a container needs that names cards as an extended resource: whole ones, of a class.
    pub fn of_extended(resource: &str, count: u64, class: &DeviceClass) -> Self {
        let name = class.metadata.name.clone().unwrap_or_default();
        let need = Need {
            request: resource.to_owned(),
            class: name,
            count: Count::Exactly(count),
            capacities: BTreeMap::new(),
            selectors: expressions(class.spec.selectors.as_ref()),
            tolerations: Vec::new(),
        };
        let mut needs = Self::default();
        needs.push(vec![need]);
        needs
    }

    fn add(&mut self, request: &DeviceRequest, classes: &Classes) {
        let mut ways = Vec::new();
        if let Some(exactly) = &request.exactly {
            if exactly.admin_access == Some(true) {
                // It takes nothing of a card, and every card will do.
                return;
            }
            ways.push(Need {
                request: request.name.clone(),
                class: exactly.device_class_name.clone(),
                count: count(exactly.allocation_mode.as_deref(), exactly.count),
                capacities: BTreeMap::new(),
                selectors: expressions(exactly.selectors.as_ref()),
                tolerations: exactly.tolerations.clone().unwrap_or_default(),
            });
            self.amounts(ways.last_mut(), exactly.capacity.as_ref());
        }
        for way in request.first_available.iter().flatten() {
            ways.push(Need {
                request: format!("{}/{}", request.name, way.name),
                class: way.device_class_name.clone(),
                count: count(way.allocation_mode.as_deref(), way.count),
                capacities: BTreeMap::new(),
                selectors: expressions(way.selectors.as_ref()),
                tolerations: way.tolerations.clone().unwrap_or_default(),
            });
            self.amounts(ways.last_mut(), way.capacity.as_ref());
        }
        for way in &mut ways {
            let Some(class) = classes.get(&way.class) else {
                let text = format!(
                    "request {}: there is no DeviceClass {}",
                    way.request, way.class
                );
                self.hurdles.push(text);
                return;
            };
            let mut all = expressions(class.spec.selectors.as_ref());
            all.append(&mut way.selectors);
            way.selectors = all;
        }
        self.push(ways);
    }

    fn push(&mut self, ways: Request) {
        let is_foreign = |way: &Need| way.selectors.iter().any(|text| selector::is_foreign(text));
        if ways.iter().all(is_foreign) {
            self.foreign.extend(ways.into_iter().map(|way| way.request));
        } else {
            self.requests.push(ways);
        }
    }

    fn amounts(&mut self, way: Option<&mut Need>, capacity: Option<&CapacityRequirements>) {
        let Some(way) = way else { return };
        let named = capacity.and_then(|capacity| capacity.requests.as_ref());
        for (name, amount) in named.into_iter().flatten() {
            match quantity::whole(&amount.0) {
                Some(amount) => {
                    way.capacities.insert(name.clone(), amount);
                }
                None => {
                    let text = format!(
                        "request {}: {name} {:?} is too large",
                        way.request, amount.0
                    );
                    self.hurdles.push(text);
                }
            }
        }
    }
}

fn count(mode: Option<&str>, count: Option<i64>) -> Count {
    match mode {
        Some("All") => Count::All,
        _ => Count::Exactly(
            count
                .and_then(|count| u64::try_from(count).ok())
                .unwrap_or(1),
        ),
    }
}

fn expressions(selectors: Option<&Vec<DeviceSelector>>) -> Vec<String> {
    let selectors = selectors.into_iter().flatten();
    let cel = selectors.filter_map(|selector| selector.cel.as_ref());
    cel.map(|cel| cel.expression.clone()).collect()
}

impl Need {
    /// The number of cards; `None`: all that there are.
    pub fn cards(&self) -> Option<usize> {
        match self.count {
            Count::Exactly(count) => usize::try_from(count.clamp(1, RESULTS_MAX + 1)).ok(),
            Count::All => None,
        }
    }
}
