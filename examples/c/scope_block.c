/* The host's side of scope.c: one residual linear block, out = in + weight in, and its vector-Jacobian product. */
enum { WIDTH = 64 };

void block_forward(const float *weight, const float *in, float *out);
void block_vjp(const float *weight, const float *in, const float *dout, float *din, float *dweight);

void block_forward(const float *weight, const float *in, float *out) {
  for (int i = 0; i < WIDTH; i++) {
    float sum = in[i];
    for (int j = 0; j < WIDTH; j++) sum += weight[i * WIDTH + j] * in[j];
    out[i] = sum;
  }
}

void block_vjp(const float *weight, const float *in, const float *dout, float *din, float *dweight) {
  for (int j = 0; j < WIDTH; j++) din[j] = dout[j];
  for (int i = 0; i < WIDTH; i++)
    for (int j = 0; j < WIDTH; j++) {
      din[j] += weight[i * WIDTH + j] * dout[i];
      dweight[i * WIDTH + j] = dout[i] * in[j];
    }
}
