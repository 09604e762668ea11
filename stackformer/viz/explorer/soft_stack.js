"use strict";

/* The exact soft stack of one layer, from its action probabilities alone.
 *
 * alpha_i is the distribution of the top after step i. The element below position j is
 * what was on top after step j - 1, so with below(r) = sum_j r(j) alpha_{j-1}
 *   alpha_i  = p_i e_i + n_i alpha_{i-1} + sum_m o_{i,m} below^m(alpha_{i-1})
 *   Z_i[k]   = below^k(alpha_i).
 * Only alpha is stored; any Z_i costs about i^3 / 6 multiplications, fewer if the
 * actions are nearly hard. */
class SoftStack {
  constructor(actions, numActions) {
    this.numActions = numActions;
    this.length = actions.length / numActions;
    this.actions = Float64Array.from(actions);
    const T = this.length, alpha = new Float64Array(T * T);
    this.alpha = alpha;
    alpha[0] = 1;
    let row = new Float64Array(T), next = new Float64Array(T);
    for (let i = 1; i < T; i++) {
      const probabilities = this.actionsAt(i);
      const here = alpha.subarray(i * T, i * T + T);
      const before = alpha.subarray((i - 1) * T, i * T);
      const stay = probabilities[2];
      for (let n = 0; n < i; n++) here[n] = stay * before[n];
      here[i] = probabilities[0];
      row.set(before);
      for (let pops = 1; pops <= numActions - 2; pops++) {
        this.below(row, next, i - 1);
        [row, next] = [next, row];
        const weight = probabilities[pops === 1 ? 1 : pops + 1];
        if (weight > 0) for (let n = 0; n < i; n++) here[n] += weight * row[n];
      }
    }
  }

  /* Probabilities of the actions at position i, made to sum to one exactly. */
  actionsAt(i) {
    const start = i * this.numActions;
    const row = this.actions.slice(start, start + this.numActions);
    const sum = row.reduce((total, value) => total + value, 0);
    return sum > 0 ? row.map((value) => value / sum) : row;
  }

  /* out = distribution of the element below one that is distributed as `row`. */
  below(row, out, last) {
    const T = this.length, alpha = this.alpha;
    out.fill(0);
    out[0] = row[0];
    for (let j = 1; j <= last; j++) {
      const weight = row[j];
      if (weight < 1e-14) continue;
      const start = (j - 1) * T;
      for (let m = 0; m < j; m++) out[m] += weight * alpha[start + m];
    }
  }

  /* Z_i[0], Z_i[1], ... down to the depth below which all is bottom (up to 0.05 %). */
  rows(i, tolerance = 5e-4) {
    const T = this.length;
    let row = this.alpha.slice(i * T, i * T + T);
    const rows = [];
    while (1 - row[0] > tolerance && rows.length < i) {
      rows.push(row);
      const next = new Float64Array(T);
      this.below(row, next, i - rows.length + 1);
      row = next;
    }
    rows.push(row);
    return rows;
  }

  top(i) {
    return this.alpha.subarray(i * this.length, (i + 1) * this.length);
  }
}
