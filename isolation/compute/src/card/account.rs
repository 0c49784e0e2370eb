//! What the card's account says that the container has had, and what follows from it.

use plan::Priority;

use super::Card;
use crate::meter::Capped;
use crate::world::Surroundings;

impl Card {
    pub(super) fn read_meter(&mut self, world: &mut dyn Surroundings) {
        let used = world.used(self.index);
        self.metered = used.is_some();
        if let Some(used) = used {
            self.meter.sample(used, world.busy(self.index));
        }
        let online = self.terms.priority == Priority::High;
        self.capped = if online && self.metered {
            self.meter.capped(self.rules.prio_ratio_percent)
        } else {
            Capped::No
        };
    }

    /// After a close. The account's times need not lie between segments: what is compared is the time that the gate was meant to be open.
    pub(crate) fn after_close(&mut self, world: &mut dyn Surroundings) {
        if !self.view.is_trimmed() || !self.metered {
            return;
        }
        if let Some(used) = world.used(self.index) {
            self.meter.sample(used, world.busy(self.index));
        }
        let Some(measured) = self.meter.measured() else {
            return;
        };
        if let Some(share) = &self.view.share {
            let window_ns = self.view.layout.window_ns;
            let open_ns = share
                .gate
                .open_between_ns(window_ns, measured.from_ns, measured.to_ns);
            let of_each = u128::from(share.gate.open_ns(window_ns).max(1));
            let windows_ns = u128::from(open_ns) * u128::from(window_ns) / of_each;
            let target_ppm = self.view.target_ppm(share, &self.rules);
            let promised_ns = windows_ns * u128::from(target_ppm) / 1_000_000;
            let full = self.view.is_full();
            if full && u128::from(measured.used_ns).abs_diff(promised_ns) * 100 < promised_ns {
                return;
            }
            self.trim.measure(
                measured.used_ns,
                u64::try_from(windows_ns).unwrap_or(u64::MAX),
                target_ppm,
                window_ns,
                measured.demand,
            );
            if full {
                // What one adds there, another loses, and adds in turn.
                self.trim.add_nothing();
            }
        }
    }
}
