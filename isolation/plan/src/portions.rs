//! Who gets which part, before anyone has a place.

/// One that takes part in a division.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant {
    /// The least it gets.
    pub(crate) floor_ppm: u32,
    /// Its part of what the floors leave to weights.
    pub(crate) weight: u32,
}

/// Divides `whole_ppm` so that each gets the larger of its floor and its weight's part, and the sum is exactly the whole.
/// Floors that exceed the whole are scaled. Parts that do not divide go to the first.
pub(crate) fn divide(whole_ppm: u32, claimants: &[Claimant]) -> Vec<u32> {
    let floors: u64 = claimants
        .iter()
        .map(|claimant| u64::from(claimant.floor_ppm))
        .sum();
    if floors >= u64::from(whole_ppm) {
        let parts = claimants
            .iter()
            .map(|claimant| u64::from(claimant.floor_ppm))
            .collect::<Vec<_>>();
        return proportional(whole_ppm, &parts);
    }
    // Those whose weight's part is below their floor leave the division with their floor, until no one does.
    let mut at_floor = vec![false; claimants.len()];
    loop {
        let (mut left, mut weights) = (u64::from(whole_ppm), 0_u64);
        for (claimant, at_floor) in claimants.iter().zip(&at_floor) {
            if *at_floor {
                left -= u64::from(claimant.floor_ppm);
            } else {
                weights += u64::from(claimant.weight);
            }
        }
        let mut changed = false;
        for (claimant, at_floor) in claimants.iter().zip(&mut at_floor) {
            let below = left * u64::from(claimant.weight) < u64::from(claimant.floor_ppm) * weights;
            if !*at_floor && (below || (claimant.weight == 0 && weights > 0)) {
                *at_floor = true;
                changed = true;
            }
        }
        if !changed {
            let parts = claimants
                .iter()
                .zip(&at_floor)
                .map(|(claimant, at_floor)| match at_floor {
                    true => 0,
                    // Only weights of 0 are left where their sum is 0.
                    false if weights == 0 => 1,
                    false => u64::from(claimant.weight),
                })
                .collect::<Vec<_>>();
            let shared = proportional(u32::try_from(left).unwrap_or(whole_ppm), &parts);
            return claimants
                .iter()
                .zip(&at_floor)
                .zip(shared)
                .map(
                    |((claimant, at_floor), share)| {
                        if *at_floor { claimant.floor_ppm } else { share }
                    },
                )
                .collect();
        }
    }
}

/// The whole in proportion to the parts; exact in sum. All 0 where the parts are.
fn proportional(whole_ppm: u32, parts: &[u64]) -> Vec<u32> {
    let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if sum == 0 {
        return vec![0; parts.len()];
    }
    let mut shares = parts
        .iter()
        .map(|part| {
            u32::try_from(u128::from(whole_ppm) * u128::from(*part) / sum).unwrap_or(whole_ppm)
        })
        .collect::<Vec<_>>();
    let mut missing = whole_ppm - shares.iter().sum::<u32>();
    for (share, part) in shares.iter_mut().zip(parts) {
        if missing == 0 {
            break;
        }
        if *part > 0 {
            *share += 1;
            missing -= 1;
        }
    }
    shares
}
