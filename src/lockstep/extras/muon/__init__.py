"""Muon, an optimizer that orthogonalises the momentum of matrices (Jordan et al. 2024)."""
