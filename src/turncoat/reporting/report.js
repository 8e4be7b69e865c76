"use strict";
(() => {
  const find = (id) => document.getElementById(id);

  // A link into the appendix opens the section that it leads to.
  const openTarget = () => {
    const target = find(decodeURIComponent(location.hash.slice(1)));
    const section = target && target.closest("details");
    if (!section) return;
    section.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // Paper has no slider, so the table of all budgets is printed, even if it was folded.
  const table = find("budgets");
  let wasOpen = true;
  addEventListener("beforeprint", () => {
    if (!table) return;
    wasOpen = table.open;
    table.open = true;
  });
  addEventListener("afterprint", () => {
    if (table) table.open = wasOpen;
  });

  const content = find("budget-data");
  if (!content) return;
  const { budgets, currency, words } = JSON.parse(content.textContent);
  const slider = find("slider"), review = find("per-review"), share = find("recoverable");
  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const write = (value) => format.format(value).replace("-", "\u2212");

  const showSaving = (budget) => {
    const cost = review.valueAsNumber, recovered = share.valueAsNumber / 100;
    if (!(cost >= 0 && recovered >= 0 && recovered <= 1)) {
      for (const id of ["saving", "saving-note", "saving-parts", "best"]) find(id).textContent = "\u2013";
      return;
    }
    const save = (one, place) => recovered * one.value[place] - cost * one.reviews;
    const savings = budgets.map((one) => save(one, 0));
    const prevented = write(recovered * budget.value[0]), spent = write(cost * budget.reviews);
    find("saving").textContent = currency + "\u00a0" + write(save(budget, 0));
    find("saving-note").textContent = write(save(budget, 1)) + " to " + write(save(budget, 2));
    find("saving-parts").textContent = prevented + " loss prevented minus " + spent + " for reviews";
    const most = Math.max(...savings), { alerts } = budgets[savings.indexOf(most)].texts;
    find("best").textContent = most > 0 ? words.best.replace("{}", alerts) : words.none;
  };

  const show = () => {
    const budget = budgets[slider.value];
    for (const [id, text] of Object.entries(budget.texts)) find(id).textContent = text;
    slider.setAttribute("aria-valuetext", budget.texts.alerts + " alerts a day");
    find("marker").style.left = 100 * budget.at + "%";
    if (review) showSaving(budget);
  };
  for (const input of [slider, review, share]) if (input) input.addEventListener("input", show);
  show();
})();
