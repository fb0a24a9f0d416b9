"""Search with CTranslate2 instead of our own: conversion of models, and the decoding backend."""
